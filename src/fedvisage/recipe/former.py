"""Former names of keys: recipes, studies and the files of a run called the target ``user``.

They are accepted wherever such a file is read. Recipes and studies that a person writes cause a notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, discard

DATA = {"user": "target", "user_name": "target_name", "user_split": "target_split"}
"""The former keys of a recipe's section ``data``, with their present names."""


def rename_keys(
    section: Mapping[str, Any], names: Mapping[str, str], place: str, say: Say = discard, prefix: str = ""
) -> dict[str, Any]:
    """Return a section with the present names of its keys, and report the former ones in one line.

    ``place`` is where errors say that the section is, ``prefix`` what stands before its keys in the notice.
    """
    former = [key for key in names if key in section]
    for key in former:
        if names[key] in section:
            raise UserError(f"{place}{key}", f"is the former name of {names[key]}, which is also set; remove {key}")
    if former:
        pairs = [f"{prefix}{key} is now called {prefix}{names[key]}" for key in former]
        say(", ".join(pairs))
    return {names.get(key, key): value for key, value in section.items()}


def rename_in_recipe(tree: Mapping[str, Any], say: Say = discard) -> dict[str, Any]:
    """Return a recipe, as plain values, with the present names of its keys."""
    data = tree.get("data")
    if not isinstance(data, Mapping) or not DATA.keys() & data.keys():
        return dict(tree)
    renamed = rename_keys(data, DATA, "recipe.data.", say, "data.")
    if "user_name" in data:
        renamed["target_name"] = _present_name(data["user_name"], data.get("sites"))
    return {**tree, "data": renamed}


def _present_name(name: Any, sites: Any) -> Any:
    """Return the present form of the names that earlier versions gave to a target without a name of its own."""
    of_a_site = isinstance(name, str) and isinstance(sites, Mapping) and name.removeprefix("user-") in sites
    return name.replace("user", "target", 1) if name == "user" or (of_a_site and name.startswith("user-")) else name


def present_key(key: str) -> str:
    """Return the present name of a dotted key, such as ``data.user``."""
    section, _, name = key.partition(".")
    return f"data.{DATA[name]}" if section == "data" and name in DATA else key


def rename_places(content: Any) -> Any:
    """Return the content of ``data.json`` or ``overlap.json`` with the present names of the places in a recipe."""
    if isinstance(content, Mapping):
        return {present_key(key): rename_places(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rename_places(item) for item in content]
    return present_key(content) if isinstance(content, str) else content
