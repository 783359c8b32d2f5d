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
    **dict.fromkeys(("Run", "compare", "evaluate", "load", "models", "open", "recount"), "api"),
    **dict.fromkeys(("run", "study"), "api"),
    **dict.fromkeys(("RunFailed", "UserError"), "base.errors"),
    **dict.fromkeys(("Call", "Home", "Method"), "federation.method"),
    "analyze": "runs.analysis",
    "dataset": "data.arrays",
    "Writer": "data.writer",
    "Server": "federation.server",
    **dict.fromkeys(("Batch", "Site"), "federation.site"),
    "Upload": "federation.wire.schema",
    "FinishedModel": "tasks.finished_model",
    "Model": "methods.models.model",
}
"""The module of each lazily imported name."""

ROOMS = {"averaging": "methods.averaging", "losses": "nn.losses", "methods": "methods", "metrics": "metrics"}
"""The lazily imported modules, by public name."""


def __getattr__(name: str) -> Any:
    try:
        with pause_garbage_collection():
            if name in ROOMS:
                return import_module(f"fedvisage.{ROOMS[name]}")
            if name in PLACES:
                return getattr(import_module(f"fedvisage.{PLACES[name]}"), name)
    except ModuleNotFoundError as error:
        from fedvisage.base.extensions import missing_package

        raise missing_package(error) or error from error
    raise AttributeError(f"module 'fedvisage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
