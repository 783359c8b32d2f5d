"""The index of modules with their first lines, and the sections of a method's page that name files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType

from docs.website import equations
from docs.website.markdown import ROOT, plain, table

SOURCE = ROOT / "src" / "fedvisage"
HEAD = """\
# Index of modules

Every module of the package with the first line of its docstring. [Architecture](architecture.md) shows how the
packages depend on each other and where to start.
"""


def index_page() -> str:
    """Return the page that lists every module by package."""
    blocks = [HEAD]
    paths = sorted(SOURCE.rglob("*.py"), key=lambda path: (path.parent, path.name))
    for folder, modules in groupby(paths, key=lambda path: path.parent):
        rows = [(f"`{path.name}`", plain(first_line(path))) for path in modules if first_line(path)]
        if rows:
            title = folder.relative_to(SOURCE.parent).as_posix()
            blocks.append(f"## {title}\n\n{table(('module', 'purpose'), rows)}")
    return "\n".join(blocks)


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n", 1)[0]


def file_name(module: str) -> str:
    """Return a module's file in the repository, as code."""
    return f"`src/{module.replace('.', '/')}.py`"


def equation_sections(files: Sequence[ModuleType]) -> Iterator[str]:
    """Yield the section that lists the equations of the paper in the code; nothing if no docstring cites one."""
    places = list(dict.fromkeys(place for module in files for place in equations.places(module)))
    if places:
        rows = [(f"`{place.name}` in {file_name(place.module)}", plain(place.text)) for place in places]
        yield "## Equations in the code\n"
        yield table(("where", "what it computes"), rows)


def file_sections(files: Sequence[ModuleType]) -> Iterator[str]:
    """Yield the section that lists the files of a method or model."""
    yield "## In the code\n"
    yield "\n".join(f"- {file_name(module.__name__)}" for module in files) + "\n"
