"""What is refused before a run begins: files that are not there, options that do not fit, pictures at two places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.data.crops import CropRecord
from fedvisage.errors import UserError
from fedvisage.federation.compatible import check_protection
from fedvisage.federation.method import Method
from fedvisage.files import check_weights, read_json
from fedvisage.progress import Say
from fedvisage.recipe import Federation, Recipe
from fedvisage.recipe.weights import named_weights
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.opened import Opened, check_entries
from fedvisage.tasks.overlap import OVERLAP, USER, check_apart, look_for_overlap
from fedvisage.tasks.recognition.benchmarks import check_unseen
from fedvisage.tasks.setup import Setup


def check_files(recipe: Recipe, whole: bool) -> None:
    """Refuse sets and weights that are not there or no such files, before anything is written, made or opened."""
    ours = recipe if whole else recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})})
    check_entries(ours)
    for place, path in named_weights(recipes.tree_of(recipe)).items():
        if whole or place[:2] == ("training", "start"):
            check_weights(Path(path), ".".join(("recipe", *place)))


def check_fits(setup: Setup) -> None:
    """Refuse options that this method would have to ignore."""
    recipe, method = setup.recipe, setup.method
    if method.pooled and recipe.federation != Federation():
        raise UserError("recipe.federation", f"{method.name} merges all sites into one; leave this section out")
    if method.pooled and recipe.training.batch.per_site:
        raise UserError("recipe.training.batch.per_site", f"{method.name} merges all sites into one; leave this out")
    check_protection(recipe, method)
    noised = method.noised(recipe)  # this also refuses settings under which noise would protect nothing
    if recipe.privacy.epsilon is not None and not (method.releases or noised):
        raise UserError("recipe.privacy", f"{method.name} releases nothing that noise protects; leave this section out")
    setup.task.check(recipe, method)
    method.check(recipe)
    if recipe.training.server_optimizer is not None and not method.steps_at_server:
        raise UserError("recipe.training.server_optimizer", f"{method.name} has no step towards one mean; leave it out")
    if recipe.training.l2sp is not None and not method.pulls:
        raise UserError("recipe.training.l2sp", f"{method.name} does not hold its sites near a start; leave it out")
    _check_parts(recipe, method)
    if recipe.evaluation.features and method.features is None:
        raise UserError("recipe.evaluation.features", f"{method.name} has no features to show; leave this out")


def check_same_source(environment: Path, now: Mapping[str, Any]) -> None:
    """Refuse to continue a run with a method of another source than the one that was passed in when it began."""
    if not environment.exists():
        return
    begun = read_json(environment)
    if begun.get("method") != now.get("method") and "method" in begun:
        raise UserError(str(environment), "the run began with another method, which was passed in from Python; pass in "
                        "the same one, or use a new directory")  # fmt: skip


def _check_parts(recipe: Recipe, method: Method) -> None:
    """Refuse batches in parts where the loss looks at a batch as a whole."""
    if recipe.training.micro_batch is None:
        return
    if not method.accumulates:
        raise UserError("recipe.training.micro_batch", f"{method.name} looks at a batch as a whole; leave it out, and "
                        "set training.batch to what fits")  # fmt: skip
    if getattr(recipe.method, "sampled_classes", None) is not None:
        raise UserError("recipe.training.micro_batch", "and method.sampled_classes, which draws classes for a whole "
                        "batch, do not go together; leave one of them out")  # fmt: skip


def checked_overlap(data: Opened, recipe: Recipe, out: Path, cache: Path, checks: Checks, say: Say) -> dict[str, Any]:
    """Refuse pictures at two places, unless that is allowed now or was when the run began; return what there is."""
    began = (out / OVERLAP).exists() and read_json(out / OVERLAP).get("allowed") is True
    allowed = checks.allow_overlap or began
    overlap = look_for_overlap(data.places, cache, say)
    for line in check_apart(overlap, allowed, recipe.data.user_name):
        say(f"note: {line}")
    told = overlap.as_json(allowed)
    if data.benchmarks:
        trained_on = {place: views for place, views in data.places.items() if place != USER}
        told["benchmarks"] = check_unseen(data.benchmarks, trained_on, crops_trained_on(data), cache, say,
                                          replace(checks, allow_overlap=allowed))  # fmt: skip
    return told


def crops_trained_on(data: Opened) -> tuple[CropRecord, ...]:
    """Return the kinds of crops that training saw, each once; only here sets and model are at hand."""
    known = [data.crops[place] for place in sorted(data.crops) if place != "data.user"]
    return tuple(dict.fromkeys(one for one in known if one is not None))
