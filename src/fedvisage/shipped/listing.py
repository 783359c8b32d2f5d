"""What ``fedvisage recipes`` says: every shipped recipe and study with its title and task.

Files without a title are parts of studies, such as printed tables. They can be named and copied, and are not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedvisage.recipe import plain_yaml
from fedvisage.shipped.names import file_of, names


@dataclass(frozen=True)
class Entry:
    """One line of the list."""

    name: str
    kind: str
    title: str
    task: str
    method: str | None


def entries() -> list[Entry]:
    """Return all recipes and studies, in the order of their names."""
    return [_entry(name) for name in names() if "title" in _tree(file_of(name))]


def as_lines(found: Sequence[Entry]) -> list[str]:
    """Return the list for people: recipes, then studies."""
    width = max((len(entry.name) for entry in found), default=0)
    lines = []
    for kind, heading in (("recipe", "Recipes"), ("study", "Studies")):
        rows = [f"  {entry.name:{width}}  {entry.task:11}  {entry.title}" for entry in found if entry.kind == kind]
        lines += [heading, *rows]
    return lines


def _entry(name: str) -> Entry:
    tree = _tree(file_of(name))
    method = tree.get("method")
    kind = "study" if method is None else "recipe"
    people = _says(file_of(name), "public") is not None if kind == "study" else _is_of_people(tree)
    return Entry(name, kind, tree["title"], "recognition" if people else "pad", _method_name(method))


def _is_of_people(recipe: dict[str, Any]) -> bool:
    """Tell a recipe for recognition without loading its method: it has public people, or names a network for faces."""
    method = recipe["method"]
    network = method.get("network", {}) if isinstance(method, dict) else {}
    return recipe["data"].get("public") is not None or "name" in network


def _method_name(method: Any) -> str | None:
    return None if method is None else str(method["name"] if isinstance(method, dict) else method)


def _says(path: Path, key: str) -> Any:
    """Return what a study says under a key, itself or through the files that it is like."""
    tree = _tree(path)
    if key in tree:
        return tree[key]
    like = tree.get("like", [])
    said = [_says(path.parent / name, key) for name in ([like] if isinstance(like, str) else like)]
    return next((value for value in reversed(said) if value is not None), None)


@cache
def _tree(path: Path) -> dict[str, Any]:
    tree = plain_yaml.read_file(path)
    return tree if isinstance(tree, dict) else {}
