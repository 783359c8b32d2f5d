"""Which protections a method can use, and which can be used together: settled before a run begins."""

from __future__ import annotations

from fedvisage.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.recipe import Recipe


def check_protection(recipe: Recipe, method: Method) -> None:
    """Refuse a rule that this method, or its way of weighing sites, would undo or ignore."""
    rule = recipe.federation.combine.rule
    if rule == "mean":
        return
    if not method.averages:
        raise UserError(
            "recipe.federation.combine",
            f"{rule} takes the place of a mean, and {method.name} does not rest on one mean of all uploads; "
            "leave it out, or use an averaging method (`fedvisage methods` says which)",
        )
    if weighs_by_examples(recipe):
        raise UserError(
            "recipe.federation.combine",
            f"{rule} counts sites alike: a number of examples is a claim, with which a hostile site could outweigh all "
            "others; set method.weight: uniform",
        )


def weighs_by_examples(recipe: Recipe) -> bool:
    """Say whether the recipe's method lets sites count by their number of images."""
    return getattr(recipe.method, "weight", "uniform") == "examples"
