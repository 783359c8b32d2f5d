"""Trackers by name: the built-in ones, and those of other packages through the entry point ``fedvisage.trackers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.report.tracking.tracker import Tracker


def _tensorboard() -> Tracker:
    from fedvisage.report.tracking.tensorboard import TensorBoard

    return TensorBoard()


def _mlflow() -> Tracker:
    from fedvisage.report.tracking.mlflow import Mlflow

    return Mlflow()


def _wandb() -> Tracker:
    from fedvisage.report.tracking.wandb import WeightsAndBiases

    return WeightsAndBiases()


TRACKERS: Mapping[str, Callable[[], Tracker]] = {"mlflow": _mlflow, "tensorboard": _tensorboard, "wandb": _wandb}


def check_named(name: str) -> None:
    """Refuse the name of an unknown tracker."""
    available = [*TRACKERS, *extensions.names("trackers")]
    if name not in available:
        raise UserError("recipe.tracking.to", f"unknown tracker {name!r}{choice_hint(name, available)}")


def tracker_named(name: str) -> Tracker:
    """Create a tracker; import errors of its package are passed on."""
    make: Callable[[], Tracker] = TRACKERS.get(name) or extensions.load("trackers", name)
    try:
        return make()
    except ModuleNotFoundError as error:
        raise ImportError(
            str(extensions.missing_extra(name, str(error.name)) if name in TRACKERS else error)
        ) from error
