"""A page for every file that a method's or a model's page speaks of, with its code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType

from docs.website import equations, papers
from docs.website.markdown import plain, table

from fedvisage.methods import METHODS, MODELS


def spoken_of() -> list[str]:
    """Return the names of these files' modules."""
    modules = [module for one in METHODS.values() for module in papers.files_of(one)]
    modules += [papers.file_of(one) for one in MODELS.values()]
    below = [place.module for module in modules for place in equations.places(module)]
    return sorted({*(module.__name__ for module in modules), *below})


def pages() -> dict[str, str]:
    """Return the pages by their place in the site."""
    return {f"files/{name}.md": page(name) for name in spoken_of()}


def page(name: str) -> str:
    """Return one file's page."""
    title = name.removeprefix("fedvisage.")
    return f"# {title}\n\n`src/{path(name)}`\n\n::: {name}\n    options: {{heading_level: 2}}\n"


def path(module: str) -> str:
    """Return a module's file, below src/."""
    return f"{module.replace('.', '/')}.py"


def link(module: str, name: str = "") -> str:
    """Return a link from a page of a method or model to a file, or to a definition in it."""
    said = f"`{name}`" if name else f"`{path(module)}`"
    return f"[{said}](../files/{module}.md{f'#{module}.{name}' if name else ''})"


def places(files: Sequence[ModuleType]) -> Iterator[str]:
    """Yield the section that says where equations are in the code; nothing if no file says so."""
    found = list(dict.fromkeys(place for module in files for place in equations.places(module)))
    if found:
        rows = [(link(one.module, one.name), plain(one.says)) for one in found]
        yield "## Equations in the code\n"
        yield table(("where", "what it says"), rows)


def listed(files: Sequence[ModuleType]) -> Iterator[str]:
    """Yield the section with links to the files."""
    yield "## In the code\n"
    yield "\n".join(f"- {link(module.__name__)}" for module in files) + "\n"
