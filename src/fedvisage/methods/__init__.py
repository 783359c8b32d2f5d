"""The list of methods: papers and baselines by name, and any algorithm on any model.

A paper that defines network and algorithm as one is a file here and a line in ``METHODS``. An algorithm is a function
of a model: ``method: {name: fedprox, model: vit-h}`` is FedProx on ViT-H, and ``{name: fedprox}`` is FedProx on the
model that its name stands for in the field's tables.
"""

from __future__ import annotations

import sys
from types import ModuleType

from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import (
    ALGORITHMS,
    METHODS,
    MODELS,
    all_methods,
    find,
    method_named,
    model_named,
    on,
    read_method,
)

__all__ = [
    "ALGORITHMS",
    "METHODS",
    "MODELS",
    "all_methods",
    "find",
    "method_named",
    "model_named",
    "on",
    "read_method",
]


class _List(ModuleType):
    """So that ``fedvisage.methods()`` is the list of methods, although the room has that name."""

    def __call__(self) -> dict[str, Method]:
        return all_methods()


sys.modules[__name__].__class__ = _List
