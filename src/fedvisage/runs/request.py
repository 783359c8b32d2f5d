"""The request for a run, with its two checks: of the recipe before any data is opened, and of the opened data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import check_weights, read_json
from fedvisage.base.progress import Reporter, Say, format_count
from fedvisage.data.overlap import OVERLAP, TARGET, find_overlap, refuse_overlap
from fedvisage.federation.method import Method
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.methods import find
from fedvisage.metrics.operating_point import LEAST_SITES
from fedvisage.metrics.threshold import ON_TRAINING
from fedvisage.recipe import Federation, Recipe
from fedvisage.recipe.data import named_weights
from fedvisage.runs.engine import Engine
from fedvisage.runs.workers import Wire
from fedvisage.tasks import shortcuts
from fedvisage.tasks.catalogue import Setup, task_of
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.opened import RunData, check_entries, check_for_start, check_same_crops, verify_sets
from fedvisage.tasks.recognition.benchmarks import check_unseen
from fedvisage.tasks.task import TrainingResult

Training = Callable[[Setup, Path, RunData, Reporter], TrainingResult]
"""A function that trains the model of a run, with the run's directory as its second argument."""

Opening = Callable[[Setup, Path, Say], RunData]
"""A function that opens the data of a run, with the cache directory as its second argument."""


@dataclass(frozen=True)
class Request:
    """Input of one run. Recipe, output directory and cache suffice for a simulation on this machine."""

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
    engine: Engine | None = None
    """Starts the workers of the sites; without it, processes of this machine."""
    report: bool = False
    """Write the report at the end of the run."""

    def find_method(self) -> Method:
        """Return the method of the run: the given one, or the recipe's own from the catalogue."""
        return self.method or find(self.recipe.method)

    def validate(self, say: Say) -> None:
        """Refuse a recipe that its method cannot follow, and missing or invalid files, before any data is opened.

        Print the method's warning about a recipe that it can follow.
        """
        recipe, sites_are_here = self.recipe, self.opening is None
        if (warning := _check_options(recipe, self.find_method())) is not None:
            say(f"warning: {warning}")
        # Without the sites on this machine, only the other sets and the weights of `training.start` can be checked.
        without_sites = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})})
        check_entries(recipe if sites_are_here else without_sites)
        for place, path in named_weights(recipes.tree_of(recipe)).items():
            if sites_are_here or place[:2] == ("training", "start"):
                check_weights(Path(path), ".".join(("recipe", *place)))
        if self.checks.verify:
            verify_sets(recipe.data.entries, self.cache, say)

    def check_data(self, data: RunData, say: Say) -> dict[str, Any]:
        """Refuse sets with different crops and images in two places, and return the overlap for ``overlap.json``.

        Overlap that was allowed when the run began stays allowed.
        """
        check_same_crops(data.crops, self.checks.allow_mixed_crops)
        start = self.recipe.training.starts_from
        if start is not None and self.opening is None and data.people is None:
            check_for_start(Path(start.file), data.crops, self.checks.allow_mixed_crops)
        path = self.out / OVERLAP
        allowed_before = path.exists() and read_json(path).get("allowed") is True
        checks = replace(self.checks, allow_overlap=self.checks.allow_overlap or allowed_before)
        overlap = find_overlap(data.places, self.cache, say)
        for line in refuse_overlap(overlap, checks.allow_overlap, self.recipe.data.target_name):
            say(f"note: {line}")
        record = overlap.as_json(checks.allow_overlap)
        if data.benchmarks:
            trained_on = {place: views for place, views in data.places.items() if place != TARGET}
            crops = data.training_crops
            record["benchmarks"] = check_unseen(data.benchmarks, trained_on, crops, self.cache, say, checks)
        return record


def _check_options(recipe: Recipe, method: Method) -> str | None:
    """Refuse options that the method cannot follow; return the method's warning about the others, if it has one."""
    name, federation, training = method.name, recipe.federation, recipe.training
    shows_curve, sites = federation.rates == "curve", len(recipe.data.sites)
    refusals = (
        (
            method.pooled and federation != Federation(),
            "federation",
            f"{name} merges all sites into one; leave this section out",
        ),
        (
            method.pooled and bool(training.batch.per_site),
            "training.batch.per_site",
            f"{name} merges all sites into one; leave this out",
        ),
        # The next three curves would show the error rates of a single site.
        (
            shows_curve and method.members == "each",
            "federation.rates",
            f"curve is a single site's here: {name} keeps one model per site; leave it out",
        ),
        (
            shows_curve and sites < LEAST_SITES,
            "federation.rates",
            f"curve needs {LEAST_SITES} sites, got {format_count(sites, 'site')}: one of two could subtract its own; "
            "use threshold",
        ),
        (
            shows_curve and recipe.evaluation.threshold == ON_TRAINING,
            "federation.rates",
            f"curve needs held-out images, which {ON_TRAINING} does not use; use threshold",
        ),
        (
            training.server_optimizer is not None and "server_optimizer" not in method.supports,
            "training.server_optimizer",
            f"{name} does not support it; leave it out",
        ),
        (
            training.l2sp is not None and "l2sp" not in method.supports,
            "training.l2sp",
            f"{name} has no proximal term that keeps sites near a start; leave it out",
        ),
        # The loss of these two depends on a whole batch.
        (
            training.micro_batch is not None and "micro_batch" not in method.supports,
            "training.micro_batch",
            f"{name} has a loss that depends on the whole batch; leave it out, and set training.batch to a size that "
            "fits",
        ),
        (
            training.micro_batch is not None and getattr(recipe.method, "sampled_classes", None) is not None,
            "training.micro_batch",
            "and method.sampled_classes, which samples classes for a whole batch, exclude each other; leave one of "
            "them out",
        ),
        (
            bool(recipe.evaluation.features) and method.prediction.features is None,
            "evaluation.features",
            f"{name} has no features to show; leave this out",
        ),
    )
    for applies, place, fault in refusals:
        if applies:
            raise UserError(f"recipe.{place}", fault)
    check_protection(recipe, method)
    shortcuts.check(recipe, method)
    noised = method.noised(recipe)  # also refuses settings under which the noise would protect nothing
    if recipe.privacy.epsilon is not None and not (method.releases or noised):
        raise UserError("recipe.privacy", f"{name} releases nothing that noise could protect; leave this section out")
    task_of(method).check(recipe, method)
    return method.check(recipe)
