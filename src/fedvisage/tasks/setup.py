"""What a run works with, looked up once and handed on: the method, the task, and where and how precisely to compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedvisage.federation.desk import Workspace
from fedvisage.federation.method import Method
from fedvisage.nn.precision import Compute, Layout, choose
from fedvisage.recipe import Recipe
from fedvisage.tasks import statistics
from fedvisage.tasks.catalogue import task_of
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Task
from fedvisage.workers.machine import use_threads


@dataclass(frozen=True)
class Setup:
    """A recipe with all that it names."""

    recipe: Recipe
    method: Method
    task: Task
    compute: Compute
    files: Mapping[str, Path] = field(default_factory=dict)
    """This machine's copies of files that the recipe names."""

    def scorer(self) -> Scorer:
        """Return the delivered parts of the network, ready to score images."""
        return Scorer(self.method, self.recipe, self.compute)

    def workspace(self) -> Workspace:
        """Return the network that the sites of this process borrow, with all calls that they answer."""
        scorer = self.scorer()
        about_finished = {**self.task.calls(scorer), **statistics.calls(scorer)}
        workspace = Workspace(self.method, self.recipe, self.compute, about_finished)
        for net in (scorer.net, workspace.net):
            self.method.fix(net, self.recipe, self.files)
        return workspace


def set_up(recipe: Recipe, method: Method, files: Mapping[str, Path] | None = None) -> Setup:
    """Look up what a recipe needs, and give this process the recipe's threads.

    A layout that is still to be decided (:mod:`fedvisage.runs.layout`) is the one that nobody has to measure.
    """
    use_threads(recipe.runtime.threads)
    layout: Layout = "first" if recipe.runtime.layout == "first" else "last"
    compute = choose(recipe.runtime.device, recipe.runtime.precision, layout)
    return Setup(recipe, method, task_of(method), compute, files or {})
