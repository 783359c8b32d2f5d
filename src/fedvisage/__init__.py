"""Federated learning for faces: images never leave the site that holds them.

This module is the Python interface. ``import fedvisage as fv`` is fast, because each public name is imported at its
first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedvisage.base.imports import pause_garbage_collection
from fedvisage.base.version import VERSION as __version__
from fedvisage.nn import torchvision_cpu

if TYPE_CHECKING:
    from fedvisage import metrics
    from fedvisage.api import Run, compare, evaluate, load, methods, models, open, recount, run, study
    from fedvisage.base.errors import RunFailed, UserError
    from fedvisage.data.arrays import dataset
    from fedvisage.data.writer import Writer
    from fedvisage.federation.method import Call, Home, Method
    from fedvisage.federation.server import Server
    from fedvisage.federation.site import Batch, Site
    from fedvisage.federation.wire.schema import Upload
    from fedvisage.methods import averaging
    from fedvisage.methods.models.model import Model
    from fedvisage.nn import losses
    from fedvisage.runs.analysis import analyze
    from fedvisage.tasks.finished_model import FinishedModel

__all__ = [
    "Batch",
    "Call",
    "FinishedModel",
    "Home",
    "Method",
    "Model",
    "Run",
    "RunFailed",
    "Server",
    "Site",
    "Upload",
    "UserError",
    "Writer",
    "__version__",
    "analyze",
    "averaging",
    "compare",
    "dataset",
    "evaluate",
    "load",
    "losses",
    "methods",
    "metrics",
    "models",
    "open",
    "recount",
    "run",
    "study",
]

torchvision_cpu.install()

PLACES = {
    "api": ("Run", "compare", "evaluate", "load", "models", "open", "recount", "run", "study"),
    "base.errors": ("RunFailed", "UserError"),
    "data.arrays": ("dataset",),
    "data.writer": ("Writer",),
    "federation.method": ("Call", "Home", "Method"),
    "federation.server": ("Server",),
    "federation.site": ("Batch", "Site"),
    "federation.wire.schema": ("Upload",),
    "methods.models.model": ("Model",),
    "runs.analysis": ("analyze",),
    "tasks.finished_model": ("FinishedModel",),
}
"""The lazily imported names of each module."""

MODULES = {"averaging": "methods.averaging", "losses": "nn.losses", "methods": "methods", "metrics": "metrics"}
"""The lazily imported modules, by public name."""


def __getattr__(name: str) -> Any:
    try:
        with pause_garbage_collection():
            if name in MODULES:
                return import_module(f"fedvisage.{MODULES[name]}")
            for module, names in PLACES.items():
                if name in names:
                    return getattr(import_module(f"fedvisage.{module}"), name)
    except ModuleNotFoundError as error:
        from fedvisage.base.extensions import missing_package

        raise missing_package(error) or error from error
    raise AttributeError(f"module 'fedvisage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
