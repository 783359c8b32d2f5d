"""One page per model: description, options, parts and size."""

from __future__ import annotations

from collections.abc import Iterator

from docs.website import costs, papers, sections
from docs.website.markdown import plain, table
from docs.website.methods import DEMO, KEYS, STAND_IN, TASKS, count
from docs.website.modules import equation_sections, file_sections

import fedvisage as fv
from fedvisage.methods import ALGORITHMS, MODELS, on
from fedvisage.methods.models.model import Model

ARCHITECTURES = {
    "timm": "mobilenetv3_small_100",
    "timm-embedding": "mobilenetv3_small_100",
    "adapters": "vit_base_patch16_clip_224",
    "text-anchored": "vit_base_patch16_clip_224",
}
"""The example network of models that train any of timm's."""


def pages() -> dict[str, str]:
    """Return the pages by their place in the site: the list first."""
    return {"models/index.md": index()} | {
        f"models/{name}.md": "\n".join(page(model)) for name, model in MODELS.items()
    }


def index() -> str:
    """Return the list of models."""
    rows = [
        (
            f"[{model.title}]({name}.md)",
            f"`{name}`",
            TASKS[model.task],
            papers.account(papers.file_of(model), model).title,
        )
        for name, model in MODELS.items()
    ]
    algorithms = ", ".join(f"[`{name}`](../methods/{name}.md)" for name in ALGORITHMS)
    text = f"An algorithm is a function of a model: {algorithms} run on each of these. A model of your own is one file"
    head = ("model", "name in a recipe", "task", "what it is")
    return f"# Models\n\n{text}: [add a model](../adding-a-model.md#a-model-of-your-own).\n\n{table(head, rows)}"


def page(model: Model) -> Iterator[str]:
    """Yield one model's page."""
    module = papers.file_of(model)
    account = papers.account(module, model)
    network = {"arch": ARCHITECTURES[model.name]} if model.name in ARCHITECTURES else {}
    section = {"name": "fedprox", "model": {"name": model.name, **network}}
    recipe = fv.load(STAND_IN[model.task], {"method": section})
    method = on("fedprox", model.name)
    net = costs.network(method, recipe)
    yield f"# {model.title}\n"
    size = f"{count(net)} at the defaults and {recipe.input.size}×{recipe.input.size} pixels"
    size += f", as `{network['arch']}`" if network else ""
    yield table(
        ("", ""),
        [
            ("task", TASKS[model.task]),
            ("name in a recipe", f"`method.model: {model.name}`"),
            ("lent and averaged", ", ".join(f"`{part}`" for part in model.parts)),
            ("numbers that are trained", size),
            ("down to a site when lent", costs.format_bytes(costs.bytes_lent(method, net))),
        ],
    )
    yield f"**{plain(account.title)}**\n"
    yield from (f"{plain(paragraph)}\n" for paragraph in account.paragraphs)
    if account.deviations:
        yield "## Deviations from the paper\n"
        yield from (f"{plain(text[0].upper() + text[1:])}\n" for text in account.deviations)
    yield from equation_sections([module])
    yield "## Options\n"
    yield "Keys of a recipe's section `method`, beside those of the algorithm.\n"
    yield table(KEYS, list(sections.rows(model.averaged, without=frozenset({"name"}))))
    yield "## Commands\n"
    arch = f"{{name: {model.name}, arch: {network['arch']}}}" if network else model.name
    yield f"```console\nfedvisage run {DEMO[model.task]} 'method={{name: fedprox, model: {arch}}}'\n```\n"
    yield from file_sections([module])
