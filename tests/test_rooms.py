"""The floor plan: which file may import which. What is imported for types only counts as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedvisage"
LOOSE = 8
"""Modules that may lie at the package's root."""


def modules() -> dict[str, Path]:
    paths = {path: path.relative_to(SOURCE.parent).with_suffix("").parts for path in SOURCE.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in paths.items()}


FILES = modules()


def imported(path: Path) -> Iterator[str]:
    """Yield what a file imports, wherever in it, as the longest name that is a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in FILES else node.module


@cache
def arrows() -> dict[str, list[str]]:
    """Return what each module imports of ours."""
    return {name: sorted({one for one in imported(path) if one in FILES} - {name}) for name, path in FILES.items()}


def circles(of: Mapping[str, list[str]]) -> list[list[str]]:
    """Return a circle for each file from which a walk comes back to itself: by depth first, with the path at hand."""
    done: set[str] = set()
    found: list[list[str]] = []

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in of[name]:
                walk(other, [*path, name])
            done.add(name)

    for name in of:
        walk(name, [])
    return found


def room(name: str) -> str:
    """Return the folder in which a module lies, or its own name at the package's root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "fedvisage"


def rooms_in_order() -> list[str]:
    """Read the list of rooms in docs/architecture.md, from the top to the bottom."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| room |") :].split("\n\n")[0]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1])]


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(arrows()) == []


def test_a_circle_would_be_noticed() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]


def test_every_room_stands_once_in_the_list_of_the_documentation() -> None:
    assert sorted(rooms_in_order()) == sorted({room(name) for name in FILES} - {"fedvisage"} | {"__init__"})


def test_every_import_leads_downwards_in_that_list() -> None:
    floor = {name: number for number, name in enumerate(rooms_in_order())} | {"fedvisage": 0}
    upwards = [
        f"{name} imports {other}"
        for name, others in arrows().items()
        for other in others
        if room(name) != room(other) and floor[room(name)] >= floor[room(other)]
    ]
    assert upwards == []


def test_few_modules_lie_loose_at_the_root() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= LOOSE


def test_only_one_room_knows_nvflare_and_only_one_the_command_line() -> None:
    def users(library: str) -> set[str]:
        return {
            room(name) for name, path in FILES.items() if any(one.split(".")[0] == library for one in imported(path))
        }

    assert users("nvflare") == {"nvflare"}
    assert users("typer") == {"cli"}


def test_only_the_command_line_prints() -> None:
    def prints(path: Path) -> bool:
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)

    assert {room(name) for name, path in FILES.items() if prints(path)} <= {"cli"}


def test_test_files_have_names_of_their_own_as_pytest_wants_them() -> None:
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, following in pairwise(names) if name == following] == []
