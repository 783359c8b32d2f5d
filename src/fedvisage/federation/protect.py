"""Which protections a method can use, and which can be used together: settled before a run begins."""

from __future__ import annotations

from fedvisage.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.recipe import Recipe


def check_protection(recipe: Recipe, method: Method) -> None:
    """Refuse what this method, its way of weighing sites, or another protection would undo or ignore."""
    federation = recipe.federation
    rule = federation.combine.rule
    wanted = {"combine": rule != "mean", "secure": federation.secure is not None}
    for key in (key for key, is_wanted in wanted.items() if is_wanted):
        if not method.averages:
            raise UserError(
                f"recipe.federation.{key}",
                f"takes the place of one mean of all uploads, on which {method.name} does not rest; leave it out, or "
                "use an averaging method (`fedvisage methods` says which)",
            )
    if wanted["combine"] and wanted["secure"]:
        raise UserError(
            "recipe.federation.combine",
            f"{rule} has to see single uploads, which federation.secure hides; use one of the two",
        )
    if wanted["combine"] and weighs_by_examples(recipe):
        raise UserError(
            "recipe.federation.combine",
            f"{rule} counts sites alike: a number of examples is a claim, with which a hostile site could outweigh all "
            "others; set method.weight: uniform",
        )


def weighs_by_examples(recipe: Recipe) -> bool:
    """Say whether the recipe's method lets sites count by their number of images."""
    return getattr(recipe.method, "weight", "uniform") == "examples"
