"""Recipes as text: read, changed by ``key=value``, validated, and written out with every default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedvisage.errors import UserError
from fedvisage.recipe.recipe import Recipe
from fedvisage.recipe.section import MethodOptions

ReadMethod = Callable[[Mapping[str, Any]], MethodOptions]
"""Validates the section ``method`` by the options of the method that it names."""


def load(path: Path, overrides: Sequence[str], method: ReadMethod) -> Recipe:
    """Read a recipe file, apply ``key=value`` overrides and validate it, its method by ``method``."""
    tree = read_tree(path)
    for override in overrides:
        apply(tree, override)
    return validate(tree, method)


def read_tree(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(str(path), "must be a mapping of sections, such as method, data and training")
    return tree


def apply(tree: dict[str, Any], override: str) -> None:
    """Set one ``dotted.key=value`` in a recipe tree; the value is read as YAML."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise UserError(override, "an override is written key=value, such as training.rounds=5")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(override, f"the value is not YAML: {' '.join(str(error).split())}") from error
    put(tree, key.strip(), value, override)


def put(tree: dict[str, Any], key: str, value: Any, place: str = "") -> None:
    """Set the value of a dotted key in a recipe tree."""
    _write_out(tree)
    node: Any = tree
    *parents, last = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise UserError(place or key, f"{name} is not a section of the recipe")
    node[last] = value


def _write_out(tree: dict[str, Any]) -> None:
    """Turn the two short forms, ``method: NAME`` and ``batch: NUMBER``, into sections that overrides can reach into."""
    if isinstance(tree.get("method"), str):
        tree["method"] = {"name": tree["method"]}
    training = tree.get("training")
    if isinstance(training, dict) and isinstance(training.get("batch"), int):
        training["batch"] = {"default": training["batch"]}


def validate(tree: Mapping[str, Any], method: ReadMethod) -> Recipe:
    """Turn a tree into a recipe, or say what is wrong where."""
    section = tree.get("method")
    section = {"name": section} if isinstance(section, str) else section
    try:
        own = method(section if isinstance(section, Mapping) else {})
    except ValidationError as error:
        raise _mistake(error, "recipe.method") from error
    try:
        return Recipe.model_validate({**tree, "method": own})
    except ValidationError as error:
        raise _mistake(error, "recipe") from error


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain values, each default written out."""
    tree = recipe.model_dump(mode="json")
    tree["method"] = recipe.method.model_dump(mode="json")
    return tree


def text_of(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML."""
    return yaml.safe_dump(tree_of(recipe), sort_keys=False, allow_unicode=True)


def _mistake(error: ValidationError, root: str) -> UserError:
    problems = []
    for item in error.errors():
        place = ".".join([root, *(str(part) for part in item["loc"])])
        message = "unknown key" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
        given = item.get("input")
        got = f", got {given!r}" if isinstance(given, str | int | float) and item["type"] != "extra_forbidden" else ""
        problems.append((place, f"{message}{got}"))
    place, message = problems[0]
    more = "".join(f"; {p}: {m}" for p, m in problems[1:4])
    return UserError(place, message + more)
