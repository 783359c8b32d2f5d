"""Let torchvision import on a CPU-only torch, in any order of imports.

torchvision's wheel on the package index is built for the CUDA torch of the same index. Beside a CPU-only torch its
compiled operators cannot be loaded, and its import fails because it describes two operators that do not exist.
Declaring these two lets it import; the operators themselves, non-maximum suppression for object detection, are not used
here. Where torchvision has its operators nothing is declared.

A hook in Python's import system declares them when torchvision is about to describe them. ``import fedvisage`` installs
the hook, which costs no import of torch. ``import torch`` imports fedvisage by the entry point in pyproject.toml.
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


class Declaring(MetaPathFinder):
    """Finds no module; declares the missing schemas before torchvision describes its operators."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Declare the schemas that torchvision's own library has not declared by now."""
        if name == DESCRIBING:
            declare_missing_operators()


def install() -> None:
    """Install the hook, once."""
    if not any(isinstance(finder, Declaring) for finder in sys.meta_path):
        sys.meta_path.insert(0, Declaring())


def declare_missing_operators() -> list[str]:
    """Declare the schemas that are missing, and return their names."""
    import torch

    missing = [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in missing:
            library.define(SCHEMAS[name])  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)
    return missing


_LIBRARIES: list[Any] = []
"""What was declared, which would end with its library."""
