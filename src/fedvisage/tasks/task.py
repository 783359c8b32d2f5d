"""What a task is: all in which attack detection and recognition differ, behind one object.

A run chooses its task once, from its method, and hands it on. What differs by task is asked of the object; nothing else
in the package asks which task it is.
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
from fedvisage.metrics.identification import OfSite
from fedvisage.metrics.threshold import Histogram
from fedvisage.nn.compute import Compute
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import Benchmark, Opened
from fedvisage.tasks.saved_model import SavedModel
from fedvisage.tasks.scoring import Scorer


@dataclass(frozen=True)
class Trained:
    """What a federation leaves: the finished model, the rounds that it took, and the sites' held-out figures."""

    saved: SavedModel
    rounds: int
    heldout: dict[str, Any]
    counts: dict[str, Histogram] = field(default_factory=dict)
    """Histograms of the sites' held-out scores, where the training was in this process."""
    personal: dict[str, dict[str, OfSite]] = field(default_factory=dict)
    """Recognition: how well the sites' own models know their people, by model and site."""
    ended: dict[str, str] = field(default_factory=dict)
    """Why there were fewer rounds than the recipe wants, a cause and a reason; empty: there were not."""


class Task(Protocol):
    """Presentation attack detection, or face recognition."""

    @property
    def name(self) -> TaskName:
        """The word for it in methods and files."""
        ...

    @property
    def seen(self) -> tuple[str, ...]:
        """The splits of a site's set that training, or what is chosen for the model, looks at."""
        ...

    def check(self, recipe: Recipe, method: Declared) -> None:
        """Refuse what a method of this task would have to ignore, or what would look at what it is judged by."""
        ...

    def check_real(self, recipe: Recipe) -> None:
        """Refuse what of this task only a simulation can do."""
        ...

    def filled(self, recipe: Recipe, cache: Path, say: Say) -> Recipe:
        """Return the recipe with what follows from its data alone, and decides about networks."""
        ...

    def open(self, recipe: Recipe, method: Declared, cache: Path, say: Say) -> Opened:
        """Open (and, for ``synth:`` lines, make) the recipe's sets, and say first what is wrong about them."""
        ...

    def first(self, recipe: Recipe, data: Opened, compute: Compute, cache: Path, say: Say) -> Message:
        """Return the parts that the server trains before the first round, if the recipe wants any."""
        ...

    def uploads(self, method: Declared) -> Mapping[str, tuple[Upload, ...]]:
        """Return what the calls about a finished model upload, by call."""
        ...

    def calls(self, scorer: Scorer) -> dict[str, Call]:
        """Return the calls about a finished model, which every site answers whatever the method."""
        ...

    def settle(self, server: Server, finished: Message) -> Trained:
        """Ask the sites about the finished model, and choose thresholds from what they say."""
        ...

    def judge(self, scorer: Scorer, trained: Trained, data: Opened, out: Path) -> dict[str, Any]:
        """Judge a run's model at its user; return the figures and write the files from which they follow."""
        ...

    def check_set(self, found: PreparedSet, recipe: Recipe, entry: str) -> None:
        """Refuse a set, or a way to judge, that a finished model of this task has no use for."""
        ...

    def rejudge(self, scorer: Scorer, saved: SavedModel, view: View, name: str, out: Path | None) -> dict[str, Any]:
        """Judge a finished model on other data; with a directory, write the files from which the figures follow."""
        ...

    def without_threshold(self, scorer: Scorer, saved: SavedModel, data: Opened) -> dict[str, Any]:
        """Return a model's figures at the user that follow from no threshold, as metrics.json has them."""
        ...

    def open_benchmarks(
        self, entries: Mapping[str, str], recipe: Recipe, cache: Path, say: Say
    ) -> dict[str, Benchmark]:
        """Open further sets to judge a finished model on, by their names."""
        ...

    def on_benchmarks(self, scorer: Scorer, saved: SavedModel, benchmarks: Mapping[str, Benchmark]) -> dict[str, Any]:
        """Judge a finished model on these."""
        ...

    def summary(self, figures: Mapping[str, Any]) -> list[str]:
        """Return the headline figures as lines."""
        ...
