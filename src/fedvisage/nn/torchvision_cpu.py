"""Support for importing torchvision with a CPU-only torch, in any order of imports.

The torchvision wheel on the package index is built for the CUDA torch of the same index. With a CPU-only torch its
compiled operators cannot be loaded, and its import fails because it describes two operators that do not exist.
Declaring these two makes the import work; the operators themselves, non-maximum suppression for object detection, are
not used here. Nothing is declared if torchvision has its operators.

A hook in Python's import system declares them just before torchvision describes them. ``import fedvisage`` installs the
hook without importing torch. ``import torch`` imports fedvisage through the entry point in pyproject.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
DESCRIBING = "torchvision._meta_registrations"
"""The module that fails without the schemas; torchvision imports it after trying to load its operators."""


class SchemaHook(MetaPathFinder):
    """Import hook that finds no modules, but declares missing schemas before torchvision describes its operators."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Declare the schemas that torchvision's own library has not declared yet."""
        if name == DESCRIBING:
            declare_missing_operators()


def install() -> None:
    """Install the hook, once."""
    if not any(isinstance(finder, SchemaHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, SchemaHook())


def declare_missing_operators() -> list[str]:
    """Declare the missing schemas and return their names."""
    import torch

    missing = [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in missing:
            library.define(SCHEMAS[name])  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)
    return missing


_LIBRARIES: list[Any] = []
"""Keeps the libraries alive, because declarations end with their library."""
