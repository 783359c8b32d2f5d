"""One page per method, from its module: paper, equations, options, uploads, bytes, recipes, results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from docs.website import costs, papers, sections
from docs.website.markdown import ROOT, plain, table
from docs.website.modules import equation_sections, file_sections
from torch import nn

import fedvisage as fv
from fedvisage.federation.method import Method
from fedvisage.methods import ALGORITHMS, METHODS, find
from fedvisage.recipe import Recipe
from fedvisage.studies.shipped import entries
from fedvisage.tasks.catalogue import describe, task_of

TASKS = {"pad": "attack detection", "recognition": "recognition"}
DEMO = {"pad": "demo/fedpad", "recognition": "demo/fedavg-recognition"}
"""Recipes of demo size for any method of a task."""
KEYS = ("key", "default", "may be", "meaning")
STAND_IN = {"pad": "paper/fedpad", "recognition": "paper/fedavg-recognition"}
"""Recipes of paper size for methods without one of their own."""


def pages() -> dict[str, str]:
    """Return the pages by their place in the site: the list first."""
    return {"methods/index.md": index()} | {f"methods/{name}.md": page(method) for name, method in METHODS.items()}


def index() -> str:
    """Return the list of methods."""
    rows = [
        (
            f"[{method.title}]({name}.md)",
            f"`{name}`",
            TASKS[method.task],
            papers.account(papers.files_of(method)[0], method).title,
        )
        for name, method in METHODS.items()
    ]
    guide = "One generated page per method. [Choosing a method](../choosing-a-method.md) says when to use which."
    models = "Algorithms run on [every model](../models/index.md)."
    return f"# Methods\n\n{guide} {models}\n\n{table(('method', 'name in a recipe', 'task', 'what it is'), rows)}"


def of_task(task: str) -> list[str]:
    """Return the pages of the methods for a task."""
    return [f"methods/{name}.md" for name, method in METHODS.items() if method.task == task]


def page(method: Method) -> str:
    """Return one method's page."""
    modules = papers.files_of(method)
    return "\n".join(line for part in PARTS for line in part(method, modules)) + "\n"


def head(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Title, paper, and the module's docstring."""
    yield f"# {method.title}\n"
    sees = "a simulation only, refused between organisations" if method.pooled else method.server_sees
    rows = [
        ("paper", plain(method.paper)),
        ("task", TASKS[method.task]),
        ("name in a recipe", f"`{method.name}`"),
        ("parts", ", ".join(f"`{part}` ({home.value})" for part, home in method.home.items())),
        ("the server sees", plain(sees)),
    ]
    if in_sums := describe(method)["sees_in_secure_sums"]:
        rows.append(("with [secure aggregation](../protections.md#secure-aggregation)", plain(in_sums)))
    yield table(("", ""), rows)
    for module in modules:
        account = papers.account(module, method)
        yield f"**{plain(account.title)}**\n"
        yield from (f"{plain(paragraph)}\n" for paragraph in account.paragraphs)


def deviations(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Deviations from the paper."""
    texts = [text for module in modules for text in papers.account(module, method).deviations]
    yield "## Deviations from the paper\n"
    yield "\n\n".join(plain(text[0].upper() + text[1:]) for text in texts) + "\n" if texts else "None are known.\n"


def places(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Equations in the code; those of an algorithm's model are on the model's page."""
    yield from equation_sections(modules[:1])


def options(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Keys of its section of a recipe."""
    yield "## Options\n"
    yield f"Keys of a recipe's section `method`, beside `name: {method.name}`.\n"
    yield table(KEYS, list(sections.rows(method.options, without=frozenset({"name"}))))


def uploads(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Uploads and their bytes."""
    yield "## What leaves a site, and what a round costs\n"
    name, recipe = recipe_of(method)
    net = costs.network(method, recipe)
    fields = costs.fields(method, recipe, net)
    yield (
        f"Bytes are computed from the schema that a site checks before it sends, for the recipe `{name}`"
        f"{'' if name.endswith(method.name) else ' with this method in it'}, in which {count(net)} numbers are "
        "trained. Nothing else can leave; every field is entered in the ledger.\n"
    )
    down = costs.bytes_lent(method, net)
    rows = [
        (f"`{field.call}`", f"`{field.name}`", field.kind, plain(field.what) or "–", costs.format_bytes(field.size))
        for field in fields
    ]
    for call, group in task_of(method).uploads(method).items():
        rows += [
            (f"`{call}`", f"`{field.name}`", field.kind, plain(field.guarantee), "only when judged") for field in group
        ]
    yield table(("call", "field", "kind", "what it is", "bytes a call"), rows)
    if "one_mean" in method.supports or (down and all(field.size is not None for field in fields)):
        up = sum(field.size or 0 for field in fields)
        both = f"{costs.format_bytes(down)} down and {costs.format_bytes(up)} up"
        yield f"A round in which each call is made once: {both} a site.\n"
    elif down:
        yield f"{costs.format_bytes(down)} go down to a site when all weights are lent; the rest depends on its data.\n"
    else:
        yield "The number of bytes depends on a site's data: tokens and gradients of the images in its batches.\n"


def count(net: nn.Module) -> str:
    """Return a network's number of weights."""
    return f"{sum(weight.numel() for weight in net.parameters()):,}"


@cache
def shipped() -> dict[str, str]:
    """Return the method of each shipped recipe, except of algorithms on other models."""
    methods = {entry.name: entry.method for entry in entries() if entry.method in METHODS}
    return {name: of for name, of in methods.items() if find(fv.load(name).method) is METHODS[of]}


def recipe_of(method: Method) -> tuple[str, Recipe]:
    """Return a recipe of paper size for a method: its own, or another one with its section."""
    own = [name for name, of in shipped().items() if of == method.name and name.startswith("paper/")]
    name = min(own, key=len) if own else STAND_IN[method.task]
    changes = {} if own else {"method": {"name": method.name}}
    return name, fv.load(name, changes | ({"data.public_identities": 1000} if method.task == "recognition" else {}))


def recipes(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Commands."""
    yield "## Commands\n"
    own = [name for name, of in shipped().items() if of == method.name]
    lines = [f"fedvisage run {name}" for name in sorted(own, key=lambda name: (not name.startswith("demo/"), name))]
    if not own:
        lines = [f"fedvisage run {DEMO[method.task]} method={method.name}"]
    if method.name in ALGORITHMS:
        model = "vit-h" if method.task == "pad" else "iresnet18"
        lines.append(f"fedvisage run {DEMO[method.task]} 'method={{name: {method.name}, model: {model}}}'")
    lines += [f"fedvisage study {name}" for name in studies().get(method.name, ())]
    yield "```console\n" + "\n".join(lines) + "\n```\n"


@cache
def studies() -> dict[str, list[str]]:
    """Return the shipped studies of demo size by the methods in them."""
    studies_of: dict[str, list[str]] = {}
    for entry in entries():
        if entry.name.startswith("studies/") and entry.name.endswith("-demo"):
            text = (ROOT / "recipes" / f"{entry.name}.yaml").read_text(encoding="utf-8")
            for name in METHODS:
                if re.search(rf"(?:method(?:\.name)?: |name: |/){re.escape(name)}\b(?!-)", text):
                    studies_of.setdefault(name, []).append(entry.name)
    return studies_of


def results(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Links to the sections of results with a row of the method."""
    links = [link for path in result_pages() for link in rows_named(path, method.title)]
    yield "## Recorded results\n"
    yield "\n".join(f"- {link}" for link in links) + "\n" if links else "No table here has a row of it.\n"


def result_pages() -> list[str]:
    """Return the paths of the pages of results in the site."""
    return sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "results").glob("*.md"))


def rows_named(path: str, title: str) -> Iterator[str]:
    """Yield a link for each section with a table row that begins with a title."""
    text = (ROOT / "docs" / path).read_text(encoding="utf-8")
    name, wanted = text.split("\n", 1)[0].lstrip("# "), re.compile(rf"\| \**{re.escape(title)}\**(?![\w-])")
    for section in re.split(r"^(?=##+ )", text, flags=re.MULTILINE)[1:]:
        heading = section.split("\n", 1)[0].lstrip("# ")
        if wanted.search(section):
            yield f"[{name}: {heading}](../{path}#{anchor(heading)})"


def anchor(heading: str) -> str:
    """Return a heading's anchor in the site and on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def source(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """The files themselves."""
    yield from file_sections(modules)


PARTS = (head, deviations, places, options, uploads, recipes, results, source)
