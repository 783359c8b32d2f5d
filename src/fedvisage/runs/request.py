"""The request for a run: its recipe, its directories, and the functions that replace parts of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedvisage.base.progress import Reporter, Say
from fedvisage.federation.method import Method
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.methods import find
from fedvisage.recipe import Recipe
from fedvisage.runs.workers import Wire
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

Training = Callable[[Setup, Path, RunData, Reporter], TrainingResult]
"""A function that trains the model of a run, with the run's directory as its second argument."""

Opening = Callable[[Setup, Path, Say], RunData]
"""A function that opens the data of a run, with the cache directory as its second argument."""


@dataclass(frozen=True)
class Request:
    """What a run is to do. Recipe, output directory and cache suffice for a simulation on this machine."""

    recipe: Recipe
    out: Path
    cache: Path
    method: Method | None = None
    """A method that replaces the recipe's own one."""
    resume: bool = False
    """Continue the run in ``out``; without it, ``out`` must be empty."""
    wire: Wire = LocalTransport
    """Makes the transport between the server and the sites of this process."""
    training: Training | None = None
    """Trains elsewhere, such as over NVFlare; without it, all sites train on this machine."""
    opening: Opening | None = None
    """Opens the data that this machine has; without it, all data of the recipe."""
    checks: Checks = USUAL
    """The faults of the data that are allowed, and the thoroughness of the checks."""
    report: bool = False
    """Write the report at the end of the run."""

    def find_method(self) -> Method:
        """Return the method of the run: the given one, or the recipe's own from the catalogue."""
        return self.method or find(self.recipe.method)
