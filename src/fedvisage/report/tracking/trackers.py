"""Trackers by name: the built-in ones, and those of other packages through the entry point ``fedvisage.trackers``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.report.tracking.tracker import Tracker

TRACKERS = {"mlflow": "Mlflow", "tensorboard": "TensorBoard", "wandb": "WeightsAndBiases"}
"""The built-in trackers: modules of this package, which are loaded when a run needs them, and their classes."""


def check_named(name: str) -> None:
    """Refuse the name of an unknown tracker."""
    available = [*TRACKERS, *extensions.names("trackers")]
    if name not in available:
        raise UserError("recipe.tracking.to", f"unknown tracker {name!r}{choice_hint(name, available)}")


def tracker_named(name: str) -> Tracker:
    """Create a tracker; import errors of its package are passed on."""
    try:
        if name in TRACKERS:
            tracker: Tracker = getattr(import_module(f"fedvisage.report.tracking.{name}"), TRACKERS[name])()
            return tracker
        make: Callable[[], Tracker] = extensions.load("trackers", name)
        return make()
    except ModuleNotFoundError as error:
        raise ImportError(
            str(extensions.missing_extra(name, str(error.name)) if name in TRACKERS else error)
        ) from error
