"""The list of methods: papers and baselines by name, and any algorithm on any model.

A paper that defines network and algorithm as one is a file in this package and an entry in ``METHODS``. An algorithm is
a function of a model: ``method: {name: fedprox, model: vit-h}`` is FedProx on ViT-H, and ``{name: fedprox}`` is FedProx
on its usual model in the literature.
"""

from __future__ import annotations

import sys
from types import ModuleType

from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import (
    ALGORITHMS,
    METHODS,
    MODELS,
    Catalogue,
    advice_lines,
    all_methods,
    find,
    listed_methods,
    model_named,
    on,
    read_method,
    reader_of,
)

__all__ = [
    "ALGORITHMS",
    "METHODS",
    "MODELS",
    "Catalogue",
    "advice_lines",
    "all_methods",
    "find",
    "listed_methods",
    "model_named",
    "on",
    "read_method",
    "reader_of",
]


class _List(ModuleType):
    """A callable module, so that ``fedvisage.methods()`` lists the methods although a package has that name."""

    def __call__(self) -> Catalogue[Method]:
        return listed_methods()


sys.modules[__name__].__class__ = _List
