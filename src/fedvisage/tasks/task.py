"""The interface of a task: the functions in which attack detection and recognition differ.

A run chooses its task once, by its method, and passes the record on. Code outside the tasks calls its functions and
does not branch on the kind of task. ``tasks/pad/task.py`` and ``tasks/recognition/task.py`` fill the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Call, Method, TaskName, accept_any
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Upload
from fedvisage.metrics.groups import Groups
from fedvisage.metrics.identification import SiteFigures
from fedvisage.metrics.recorded import Metrics
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
    kept: dict[str, Any] = field(default_factory=dict)
    """With ``training.keep``: what was kept, and the held-out metrics of start and result by site."""
    shortcuts: dict[str, Any] = field(default_factory=dict)
    """With ``evaluation.shortcuts``: at how many sites each property of images alone separates the classes."""
    ended: dict[str, str] = field(default_factory=dict)
    """Cause and reason of an early end of training; empty if all rounds of the recipe took place."""


def _keep_recipe(recipe: Recipe, cache: Path, say: Say) -> Recipe:
    return recipe


def _no_weights(recipe: Recipe, data: RunData, compute: Compute, cache: Path, say: Say) -> Message:
    return {}


@dataclass(frozen=True, kw_only=True)
class Task:
    """Presentation attack detection, or face recognition."""

    name: TaskName
    """The name of the task in methods and files."""
    splits: tuple[str, ...]
    """The splits of a site's set that training, or a choice for the model, depends on."""

    # Before training.
    check: Callable[[Recipe, Method], None]
    """Refuses settings that a method of this task cannot follow, or that would select by its evaluation data."""
    check_real: Callable[[Recipe], None] = accept_any
    """Refuses settings of this task that only a simulation supports."""
    fill_recipe: Callable[[Recipe, Path, Say], Recipe] = _keep_recipe
    """Returns the recipe with values that follow from its data and that networks depend on."""
    open: Callable[[Recipe, Method, Path, Say], RunData]
    """Opens or renders the recipe's sets, and raises an error for faulty ones before training."""
    pretrain: Callable[[Recipe, RunData, Compute, Path, Say], Message] = _no_weights
    """Returns the parts that the server trains before the first round, if the recipe asks for any."""

    # After training, at the sites and the server.
    uploads: Callable[[Method], Mapping[str, tuple[Upload, ...]]]
    """Returns the uploads of the calls about a finished model, by call."""
    calls: Callable[[Scorer], dict[str, Call]]
    """Returns the calls about a finished model, which sites of every method answer."""
    choose_thresholds: Callable[[Server, Message], TrainingResult]
    """Sends the calls about the finished model to the sites, and chooses thresholds from the replies."""

    # Evaluation.
    evaluate: Callable[[Scorer, TrainingResult, RunData, Path], dict[str, Any]]
    """Evaluates a run's model on its target, returns nested metrics, and writes the files for recomputing them."""
    evaluate_snapshot: Callable[[Scorer, SavedModel, RunData], dict[str, Any]]
    """Returns a model's metrics on the target that need no threshold."""
    check_set: Callable[[PreparedSet, Recipe, str], None]
    """Refuses a set or an evaluation setting that does not apply to models of this task."""
    evaluate_saved: Callable[[Scorer, SavedModel, View, str, Path | None, Groups | None], dict[str, Any]]
    """Evaluates a finished model on other data, also by group if there are groups; with a directory, writes the files
    for recomputing the metrics."""
    open_benchmarks: Callable[[Mapping[str, str], Recipe, Path, Say], dict[str, Benchmark]]
    """Opens further sets for the evaluation of a finished model, by name."""
    evaluate_benchmarks: Callable[[Scorer, SavedModel, Mapping[str, Benchmark]], dict[str, Any]]
    """Evaluates a finished model on these benchmarks."""
    summarise: Callable[[Metrics], list[str]]
    """Returns the headline metrics as lines."""
