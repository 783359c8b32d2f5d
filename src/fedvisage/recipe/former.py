"""Readers for files of version 0.1, which called the target ``user``, under the present names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DATA = {"user": "target", "user_name": "target_name", "user_split": "target_split"}
"""The former keys of a recipe's section ``data``, with their present names."""


def rename_in_recipe(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe, as plain values, with the present names; a key under both names stays, and is unknown."""
    data = tree.get("data")
    if not isinstance(data, Mapping):
        return dict(tree)
    names = {former: present for former, present in DATA.items() if present not in data}
    return {**tree, "data": {names.get(key, key): value for key, value in data.items()}}


def rename_places(content: Any) -> Any:
    """Return the content of ``data.json`` or ``overlap.json`` with the present names of the places in a recipe."""
    if isinstance(content, Mapping):
        return {rename_places(key): rename_places(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rename_places(item) for item in content]
    return "data.target" if content == "data.user" else content
