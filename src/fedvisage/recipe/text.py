"""Recipes as text: reading, ``key=value`` overrides, validation, and writing with every default."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedvisage.base.errors import UserError
from fedvisage.recipe import plain_yaml
from fedvisage.recipe.former import rename_in_recipe
from fedvisage.recipe.recipe import Recipe
from fedvisage.recipe.section import MethodOptions, check_texts, format_value, read_section, user_error_from

ENTRY_KEY = re.compile(r"data\.(target|public|sites\.[^.]+)")
ENTRY = re.compile(r"synth:.*|[^\s\"'\[{].* only:.*")
"""A data entry with a colon, which YAML would read as a section unless it is quoted."""

ReadMethod = Callable[[Mapping[str, Any]], MethodOptions]
"""Validates the section ``method`` with the options of the method that it names."""


def load(path: Path, overrides: Sequence[str], method: ReadMethod) -> Recipe:
    """Read a recipe file, apply ``key=value`` overrides and validate it; ``method`` reads its section ``method``."""
    return validate(read_with_overrides(path, overrides), method)


def read_with_overrides(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Read a recipe file and apply ``key=value`` overrides, without validating the result."""
    tree = read_tree(path)
    for override in overrides:
        apply_override(tree, override)
    return tree


def read_tree(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping."""
    tree = plain_yaml.read_file(path)
    if not isinstance(tree, dict):
        raise UserError(str(path), "must be a mapping of sections, such as method, data and training")
    return rename_in_recipe(tree)


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set one ``dotted.key=value`` in a recipe tree; the value is parsed as YAML, but a data entry is kept as text."""
    key, sign, text = (part.strip() for part in override.partition("="))
    if not sign or not key:
        raise UserError(override, "an override must have the form key=value, such as training.rounds=5")
    if key.startswith("recipe."):
        raise UserError(override, f"leave out `recipe.`: {override.strip().removeprefix('recipe.')}")
    is_entry = ENTRY_KEY.fullmatch(key) and ENTRY.fullmatch(text)
    value = text if is_entry else plain_yaml.parse(text, override, "the value is not valid YAML")
    set_value(tree, key, value, override)


def set_value(tree: dict[str, Any], key: str, value: Any, place: str = "") -> None:
    """Set the value of a dotted key in a recipe tree."""
    # The short forms `method: NAME` and `batch: NUMBER` become sections, so that overrides reach their keys.
    if isinstance(tree.get("method"), str):
        tree["method"] = {"name": tree["method"]}
    training = tree.get("training")
    if isinstance(training, dict) and isinstance(training.get("batch"), int):
        training["batch"] = {"default": training["batch"]}
    node: Any = tree
    *parents, last = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise UserError(place or key, f"{name} is not a section of the recipe")
    node[last] = value


def validate(tree: Mapping[str, Any], method: ReadMethod) -> Recipe:
    """Turn a tree into a recipe, or raise an error that names the place and the fault."""
    section = tree.get("method")
    section = {"name": section} if isinstance(section, str) else section
    if not isinstance(section, Mapping | None):
        raise UserError(
            "recipe.method", f"must be the name of a method, or a section with its name, got {format_value(section)}"
        )
    check_texts(section, "recipe.method")
    try:
        options = method(section or {})
    except ValidationError as error:  # of a method outside the catalogue, whose options raise pydantic's own error
        raise user_error_from(error, "recipe.method") from error
    return read_section(Recipe, {**rename_in_recipe(tree), "method": options}, "recipe")


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain values, with every default."""
    tree = recipe.model_dump(mode="json")
    tree["method"] = recipe.method.model_dump(mode="json")
    return tree


def present_text(path: Path) -> str:
    """Return the text of a written recipe as this version would write it: with the present names of its keys."""
    return plain_yaml.write(read_tree(path))


def text_of(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML."""
    return plain_yaml.write(tree_of(recipe))
