"""Let torchvision import on a CPU-only torch.

The torchvision wheels of the package index are built against a CUDA torch. On a CPU-only torch their compiled operators
cannot be loaded, and the import then fails because two operator schemas that it wants to describe do not exist.
Declaring these two (and nothing else) lets it import; the operators themselves, object detection's non-maximum
suppression, are not used here. On a normal installation this module does nothing. Import it before timm.
"""

import importlib.util
from pathlib import Path

import torch

SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def operators_load() -> bool:
    """Say whether torchvision's compiled operators can be loaded into this torch."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    libraries = list(Path(found.origin).parent.glob("_C*.so"))
    try:
        for library in libraries:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return bool(libraries)


def declare_missing_operators() -> list[str]:
    """Declare the schemas that are missing, and return their names."""
    if operators_load():
        return []
    missing = [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    for name in missing:
        _LIBRARY.define(SCHEMAS[name])  # type: ignore[no-untyped-call]
    return missing


_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
DECLARED = declare_missing_operators()
