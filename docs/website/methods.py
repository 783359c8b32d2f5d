"""A page for every method, from its file: paper, equations, options, what leaves a site, bytes, recipes, results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from docs.website import costs, papers, sections
from docs.website.markdown import ROOT, plain, table
from docs.website.modules import equation_sections, file_sections

import fedvisage as fv
from fedvisage.federation.method import Method
from fedvisage.methods import ALGORITHMS, METHODS, find
from fedvisage.recipe import Recipe
from fedvisage.studies.shipped import entries
from fedvisage.tasks.catalogue import SUMS, task_of

TASKS = {"pad": "attack detection", "recognition": "recognition"}
DEMO = {"pad": "demo/fedpad", "recognition": "demo/fedavg-recognition"}
"""Recipes of demo size into which any method of a task can be put."""
KEYS = ("key", "default", "may be", "meaning")
STAND_IN = {"pad": "paper/fedpad", "recognition": "paper/fedavg-recognition"}
"""Recipes in whose place a method's own section is put if no recipe of paper size names it."""


def pages() -> dict[str, str]:
    """Return the pages by their place in the site: the list first."""
    return {"methods/index.md": index()} | {f"methods/{name}.md": page(one) for name, one in METHODS.items()}


def index() -> str:
    """Return the list of methods."""
    rows = [
        (f"[{one.title}]({name}.md)", f"`{name}`", TASKS[one.task], papers.account(papers.files_of(one)[0], one).title)
        for name, one in METHODS.items()
    ]
    said = "One generated page per method. [Choosing a method](../choosing-a-method.md) says when to use which."
    models = "Algorithms run on [every model](../models/index.md)."
    return f"# Methods\n\n{said} {models}\n\n{table(('method', 'name in a recipe', 'task', 'what it is'), rows)}"


def of_task(task: str) -> list[str]:
    """Return the pages of the methods for a task."""
    return [f"methods/{name}.md" for name, one in METHODS.items() if one.task == task]


def page(method: Method) -> str:
    """Return one method's page."""
    modules = papers.files_of(method)
    return "\n".join(line for part in PARTS for line in part(method, modules)) + "\n"


def head(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Title, paper, and what the file says of it."""
    yield f"# {method.title}\n"
    sees = "a simulation only, refused between organisations" if method.pooled else method.server_sees
    rows = [
        ("paper", plain(method.paper)),
        ("task", TASKS[method.task]),
        ("name in a recipe", f"`{method.name}`"),
        ("parts", ", ".join(f"`{part}` ({home.value})" for part, home in method.home.items())),
        ("the server sees", plain(sees)),
    ]
    if "one_mean" in method.supports and not method.pooled:
        rows.append(("with [secure aggregation](../protections.md#secure-aggregation)", plain(SUMS)))
    yield table(("", ""), rows)
    for module in modules:
        told = papers.account(module, method)
        yield f"**{plain(told.title)}**\n"
        yield from (f"{plain(one)}\n" for one in told.paragraphs)


def deviations(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """What differs from the paper."""
    told = [one for module in modules for one in papers.account(module, method).deviations]
    yield "## Deviations from the paper\n"
    yield "\n\n".join(plain(one[0].upper() + one[1:]) for one in told) + "\n" if told else "None are known.\n"


def places(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Equations, and where each is in the code; those of an algorithm's model are on the model's page."""
    yield from equation_sections(modules[:1])


def options(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Keys of its section of a recipe."""
    yield "## Options\n"
    yield f"Keys of a recipe's section `method`, beside `name: {method.name}`.\n"
    yield table(KEYS, list(sections.rows(method.options, without=frozenset({"name"}))))


def uploads(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """What leaves a site, and its bytes."""
    yield "## What leaves a site, and what a round costs\n"
    name, recipe = recipe_of(method)
    net = costs.network(method, recipe)
    found = costs.fields(method, recipe, net)
    yield (
        f"Bytes are worked out from the declaration that a site's exit checks, for the recipe `{name}`"
        f"{'' if name.endswith(method.name) else ' with this method in it'}, in which {count(net)} numbers are "
        "trained. Nothing else can leave; every field is entered in the ledger.\n"
    )
    down = costs.lent(method, net)
    rows = [
        (f"`{one.call}`", f"`{one.name}`", one.kind, plain(one.what) or "–", costs.spelled(one.size)) for one in found
    ]
    for call, group in task_of(method).uploads(method).items():
        rows += [(f"`{call}`", f"`{one.name}`", one.kind, plain(one.guarantee), "only when judged") for one in group]
    yield table(("call", "field", "kind", "what it is", "bytes a call"), rows)
    if "one_mean" in method.supports or (down and all(one.size is not None for one in found)):
        up = sum(one.size or 0 for one in found)
        both = f"{costs.spelled(down)} down and {costs.spelled(up)} up"
        yield f"A round in which each call is made once: {both} a site.\n"
    elif down:
        yield f"{costs.spelled(down)} go down to a site when all weights are lent; what varies follows from its data.\n"
    else:
        yield "What varies follows from a site's data: tokens and gradients from the images of its batches.\n"


def count(net: object) -> str:
    """Return a network's number of weights."""
    return f"{sum(one.numel() for one in net.parameters()):,}"  # type: ignore[attr-defined]


@cache
def shipped() -> dict[str, str]:
    """Return methods' names by the shipped recipe that is of them, and not of an algorithm on another model."""
    named = {one.name: one.method for one in entries() if one.method in METHODS}
    return {name: of for name, of in named.items() if find(fv.load(name).method) is METHODS[of]}


def recipe_of(method: Method) -> tuple[str, Recipe]:
    """Return a recipe of paper size for a method: its own, or another's with its section in the place."""
    own = [name for name, of in shipped().items() if of == method.name and name.startswith("paper/")]
    name = min(own, key=len) if own else STAND_IN[method.task]
    changes = {} if own else {"method": {"name": method.name}}
    return name, fv.load(name, changes | ({"data.public_identities": 1000} if method.task == "recognition" else {}))


def recipes(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Commands."""
    yield "## Commands\n"
    own = [name for name, of in shipped().items() if of == method.name]
    lines = [f"fedvisage run {name}" for name in sorted(own, key=lambda one: (not one.startswith("demo/"), one))]
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
    found: dict[str, list[str]] = {}
    for entry in entries():
        if entry.name.startswith("studies/") and entry.name.endswith("-demo"):
            text = (ROOT / "recipes" / f"{entry.name}.yaml").read_text(encoding="utf-8")
            for name in METHODS:
                if re.search(rf"(?:method(?:\.name)?: |name: |/){re.escape(name)}\b(?!-)", text):
                    found.setdefault(name, []).append(entry.name)
    return found


def results(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """Links to the sections of results that have a row of its title."""
    found = [link for path in result_pages() for link in rows_named(path, method.title)]
    yield "## Recorded results\n"
    yield "\n".join(f"- {link}" for link in found) + "\n" if found else "No table here has a row of it.\n"


def result_pages() -> list[str]:
    """Return the pages of results, as the site has them."""
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
    """Return a heading's anchor, as the site and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def source(method: Method, modules: list[ModuleType]) -> Iterator[str]:
    """The files themselves."""
    yield from file_sections(modules)


PARTS = (head, deviations, places, options, uploads, recipes, results, source)
