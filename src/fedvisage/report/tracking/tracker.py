"""The interface of trackers: four calls that receive figures of a run, and never scores with names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from fedvisage.metrics.recorded import Metrics

# The figures that trackers receive, chosen by name, so that nothing else reaches them.
OF_A_RUN = (
    *("threshold", "hter", "eer", "auc", "tpr_at_fpr_1pct", "apcer", "bpcer", "acer", "bpcer_at_apcer", "video"),
    *("generic", "personal"),
)
OF_A_RECIPE = ("method", "input", "training", "federation", "evaluation", "privacy", "runtime")
"""Sections whose numbers are reported; the others describe sets and reports."""
WORDS = (
    *("method.name", "method.model", "training.optimizer.name", "training.schedule.name", "federation.combine.rule"),
    *("evaluation.threshold", "evaluation.level", "runtime.precision"),
)


def round_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the reported figures of a round: losses, held-out figures, bytes, time, replies and failures."""
    figures = {key: row[key] for key in ("loss", "heldout", "bytes_up", "bytes_down", "seconds") if key in row}
    return scalars(
        figures | {"sites_replied": len(row.get("replied") or []), "sites_failed": len(row.get("failed") or {})}
    )


def target_scalars(metrics: Metrics) -> dict[str, float]:
    """Return the figures of a finished run."""
    figures = {name: value for name, value in metrics.items() if name.partition(".")[0] in OF_A_RUN}
    return scalars({"target": {name.replace(".", "/"): value for name, value in figures.items()}})


def settings_of(recipe: Mapping[str, Any]) -> dict[str, float | str]:
    """Return the numbers of a recipe of plain values, and the words in WORDS, which name no files and no sets."""
    settings: dict[str, float | str] = {}
    for name in OF_A_RECIPE:
        section = recipe.get(name)
        settings |= scalars({name: section}, ".") if isinstance(section, dict) else {}
    for key in WORDS:
        value: Any = recipe
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            settings[key] = value
    return settings


def scalars(tree: Mapping[str, Any], between: str = "/", prefix: str = "") -> dict[str, float]:
    """Return the numbers of a nested mapping by their path, such as `loss/O`."""
    numbers: dict[str, float] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            numbers |= scalars(value, between, f"{prefix}{key}{between}")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            numbers[f"{prefix}{key}"] = float(value)
    return numbers


End = Literal["finished", "stopped"]
"""The end of a run; a stopped run can be resumed."""


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run that a tracker receives before the figures."""

    name: str
    project: str
    run: Path
    """The run's directory."""
    store: Path
    """Directory for the files of trackers."""
    settings: Mapping[str, float | str]
    """The recipe's numbers by their dotted keys, and a few of its words."""


class Tracker(Protocol):
    """Receives the figures of one run. Its exceptions are reported as warnings, and the run continues without it."""

    def start(self, run: TrackedRun, earlier: str) -> str:
        """Start a run, or continue the one named by an earlier ``start``; return the run's name for the next call."""

    def log(self, step: int, figures: Mapping[str, float], when: float) -> None:
        """Receive the figures of a round, and the time of its end."""

    def artefact(self, path: Path) -> None:
        """Receive a file with figures."""

    def end(self, how: End) -> None:
        """Close the run."""
