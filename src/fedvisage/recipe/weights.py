"""Where a recipe may name a file of weights, and which it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLACES = (("training", "start"), ("training", "start", "file"), ("method", "network", "weights"))


def named_weights(tree: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the files of weights that a recipe of plain values names, by place."""
    files: dict[tuple[str, ...], str] = {}
    for place in PLACES:
        value: Any = tree
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value != "none":
            files[place] = value
    return files
