"""Options of the checks of datasets before training or evaluation, and a check of recipes of both tasks."""

from __future__ import annotations

from dataclasses import dataclass

from fedvisage.base.errors import UserError
from fedvisage.federation.declared import Declared
from fedvisage.recipe import Recipe


@dataclass(frozen=True)
class Checks:
    """The faults of datasets that are allowed, and the thoroughness of the checks."""

    allow_mixed_crops: bool = False
    """Accept sets whose faces were cropped in different ways."""

    allow_overlap: bool = False
    """Accept images that appear in two places, such as a site and the target."""

    verify: bool = False
    """Compare every byte with the set's digest instead of a sample."""


USUAL = Checks()


def check_keep(recipe: Recipe, method: Declared) -> None:
    """Refuse a choice between start and result for one model per site."""
    if recipe.training.keep is not None and method.several_models:
        raise UserError(
            "recipe.training.keep",
            f"compares one model with its start, and {method.name} trains one per site; leave it out",
        )
