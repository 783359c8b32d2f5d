"""The two checks of a run: of the recipe before any data is opened, and of the data once it is open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import check_weights, read_json
from fedvisage.base.progress import Say, format_count
from fedvisage.data.overlap import OVERLAP, TARGET, find_overlap, refuse_overlap
from fedvisage.federation.method import Method
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.metrics.operating_point import LEAST_SITES
from fedvisage.metrics.threshold import ON_TRAINING
from fedvisage.recipe import Federation, Recipe
from fedvisage.recipe.data import named_weights
from fedvisage.runs.request import Request
from fedvisage.tasks.catalogue import task_of
from fedvisage.tasks.opened import RunData, check_entries, check_for_start, check_same_crops, verify_sets
from fedvisage.tasks.recognition.benchmarks import check_unseen


def validate(request: Request, say: Say) -> None:
    """Refuse a recipe that its method cannot follow, and missing or invalid files, before any data is opened.

    Print the method's warning about a recipe that it can follow.
    """
    if (warning := _check_options(request.recipe, request.find_method())) is not None:
        say(f"warning: {warning}")
    # Without the sites on this machine, only the other sets and the weights of `training.start` can be checked here.
    recipe, sites_are_here = request.recipe, request.opening is None
    without_sites = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})})
    check_entries(recipe if sites_are_here else without_sites)
    for place, path in named_weights(recipes.tree_of(recipe)).items():
        if sites_are_here or place[:2] == ("training", "start"):
            check_weights(Path(path), ".".join(("recipe", *place)))
    if request.checks.verify:
        verify_sets(recipe.data.entries, request.cache, say)


def check_opened_data(request: Request, data: RunData, say: Say) -> dict[str, Any]:
    """Refuse sets with different crops and images in two places, and return the overlap for ``overlap.json``.

    Overlap that was allowed when the run began stays allowed.
    """
    check_same_crops(data.crops, request.checks.allow_mixed_crops)
    start = request.recipe.training.starts_from
    if start is not None and request.opening is None and data.people is None:
        check_for_start(Path(start.file), data.crops, request.checks.allow_mixed_crops)
    path = request.out / OVERLAP
    allowed_before = path.exists() and read_json(path).get("allowed") is True
    checks = replace(request.checks, allow_overlap=request.checks.allow_overlap or allowed_before)
    overlap = find_overlap(data.places, request.cache, say)
    for line in refuse_overlap(overlap, checks.allow_overlap, request.recipe.data.target_name):
        say(f"note: {line}")
    record = overlap.as_json(checks.allow_overlap)
    if data.benchmarks:
        trained_on = {place: views for place, views in data.places.items() if place != TARGET}
        record["benchmarks"] = check_unseen(
            data.benchmarks, trained_on, data.training_crops, request.cache, say, checks
        )
    return record


def _check_options(recipe: Recipe, method: Method) -> str | None:
    """Refuse options that the method cannot follow; return the method's warning about the others, if it has one."""
    if method.pooled and recipe.federation != Federation():
        raise UserError("recipe.federation", f"{method.name} merges all sites into one; leave this section out")
    if method.pooled and recipe.training.batch.per_site:
        raise UserError("recipe.training.batch.per_site", f"{method.name} merges all sites into one; leave this out")
    if recipe.federation.rates == "curve":
        _check_rates(recipe, method)
    check_protection(recipe, method)
    noised = method.noised(recipe)  # also refuses settings under which the noise would protect nothing
    if recipe.privacy.epsilon is not None and not (method.releases or noised):
        raise UserError(
            "recipe.privacy", f"{method.name} releases nothing that noise could protect; leave this section out"
        )
    task_of(method).check(recipe, method)
    warning = method.check(recipe)
    if recipe.training.server_optimizer is not None and "server_optimizer" not in method.supports:
        raise UserError("recipe.training.server_optimizer", f"{method.name} does not average its uploads; leave it out")
    if recipe.training.l2sp is not None and "l2sp" not in method.supports:
        raise UserError(
            "recipe.training.l2sp", f"{method.name} has no proximal term that keeps sites near a start; leave it out"
        )
    if recipe.training.micro_batch is not None:
        _check_micro_batch(recipe, method)
    if recipe.evaluation.features and method.prediction.features is None:
        raise UserError("recipe.evaluation.features", f"{method.name} has no features to show; leave this out")
    return warning


def _check_rates(recipe: Recipe, method: Method) -> None:
    """Refuse curves that would show the error rates of a single site."""
    place = "recipe.federation.rates"
    if method.members == "each":
        raise UserError(place, f"curve is a single site's here: {method.name} keeps one model per site; leave it out")
    if len(recipe.data.sites) < LEAST_SITES:
        sites = format_count(len(recipe.data.sites), "site")
        raise UserError(
            place, f"curve needs {LEAST_SITES} sites, got {sites}: one of two could subtract its own; use threshold"
        )
    if recipe.evaluation.threshold == ON_TRAINING:
        raise UserError(place, f"curve needs held-out images, which {ON_TRAINING} does not use; use threshold")


def _check_micro_batch(recipe: Recipe, method: Method) -> None:
    """Refuse micro-batches for a loss that depends on a whole batch."""
    if "micro_batch" not in method.supports:
        raise UserError(
            "recipe.training.micro_batch",
            f"{method.name} has a loss that depends on the whole batch; leave it out, and set training.batch to a "
            "size that fits",
        )
    if getattr(recipe.method, "sampled_classes", None) is not None:
        raise UserError(
            "recipe.training.micro_batch",
            "and method.sampled_classes, which samples classes for a whole batch, exclude each other; leave one "
            "of them out",
        )
