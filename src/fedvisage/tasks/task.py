"""The interface of a task, with everything in which attack detection and recognition differ.

A run chooses its task once, by its method, and passes the object on. Code outside the tasks calls the object and does
not branch on the kind of task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.declared import Call, Declared, TaskName
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Upload
from fedvisage.metrics.identification import SiteFigures
from fedvisage.metrics.threshold import Histogram
from fedvisage.nn.compute import Compute
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import Benchmark, RunData
from fedvisage.tasks.saved_model import SavedModel
from fedvisage.tasks.scoring import Scorer


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training: the finished model, the number of rounds, and the sites' held-out metrics."""

    saved: SavedModel
    rounds: int
    heldout: dict[str, Any]
    counts: dict[str, Histogram] = field(default_factory=dict)
    """Histograms of the sites' held-out scores, if the training ran in this process."""
    personal: dict[str, dict[str, SiteFigures]] = field(default_factory=dict)
    """Recognition: metrics of the sites' own models on their people, by model and site."""
    ended: dict[str, str] = field(default_factory=dict)
    """Cause and reason of an early end of training; empty if all rounds of the recipe took place."""


class Task(Protocol):
    """Presentation attack detection, or face recognition."""

    @property
    def name(self) -> TaskName:
        """The name of the task in methods and files."""
        ...

    @property
    def seen(self) -> tuple[str, ...]:
        """The splits of a site's set that training, or a choice for the model, depends on."""
        ...

    def check(self, recipe: Recipe, method: Declared) -> None:
        """Refuse settings that a method of this task cannot follow, or that would select by its evaluation data."""
        ...

    def check_real(self, recipe: Recipe) -> None:
        """Refuse settings of this task that only a simulation supports."""
        ...

    def filled(self, recipe: Recipe, cache: Path, say: Say) -> Recipe:
        """Return the recipe with values that follow from its data and that networks depend on."""
        ...

    def open(self, recipe: Recipe, method: Declared, cache: Path, say: Say) -> RunData:
        """Open or render the recipe's sets, and raise an error for faulty ones before training."""
        ...

    def first(self, recipe: Recipe, data: RunData, compute: Compute, cache: Path, say: Say) -> Message:
        """Return the parts that the server trains before the first round, if the recipe asks for any."""
        ...

    def uploads(self, method: Declared) -> Mapping[str, tuple[Upload, ...]]:
        """Return the uploads of the calls about a finished model, by call."""
        ...

    def calls(self, scorer: Scorer) -> dict[str, Call]:
        """Return the calls about a finished model, which sites of every method answer."""
        ...

    def settle(self, server: Server, finished: Message) -> TrainingResult:
        """Send the calls about the finished model to the sites, and choose thresholds from the replies."""
        ...

    def evaluate(self, scorer: Scorer, trained: TrainingResult, data: RunData, out: Path) -> dict[str, Any]:
        """Evaluate a run's model on its target, return the metrics, and write the files for recomputing them."""
        ...

    def check_set(self, found: PreparedSet, recipe: Recipe, entry: str) -> None:
        """Refuse a set or an evaluation setting that does not apply to models of this task."""
        ...

    def evaluate_saved(
        self, scorer: Scorer, saved: SavedModel, view: View, name: str, out: Path | None
    ) -> dict[str, Any]:
        """Evaluate a finished model on other data; with a directory, write the files for recomputing the metrics."""
        ...

    def without_threshold(self, scorer: Scorer, saved: SavedModel, data: RunData) -> dict[str, Any]:
        """Return a model's metrics on the target that need no threshold, in the format of metrics.json."""
        ...

    def open_benchmarks(
        self, entries: Mapping[str, str], recipe: Recipe, cache: Path, say: Say
    ) -> dict[str, Benchmark]:
        """Open further sets for the evaluation of a finished model, by name."""
        ...

    def on_benchmarks(self, scorer: Scorer, saved: SavedModel, benchmarks: Mapping[str, Benchmark]) -> dict[str, Any]:
        """Evaluate a finished model on these benchmarks."""
        ...

    def summary(self, figures: Mapping[str, Any]) -> list[str]:
        """Return the headline metrics as lines."""
        ...
