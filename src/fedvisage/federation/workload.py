"""How much a site trains: batches of a pass over its data, and batches of a round."""

from __future__ import annotations

from fedvisage.recipe import Recipe


def epoch_length(recipe: Recipe, site: str, images: int) -> int:
    """Return how many batches a pass over so many images of a site has."""
    whole, rest = divmod(images, recipe.training.batch.of(site))
    drops = rest == 1 and recipe.training.sampling == "shuffled"
    return max(1, whole + (1 if rest and not drops else 0))


def round_length(recipe: Recipe, site: str, images: int) -> int:
    """Return how many batches a site with so many images trains on between two aggregations."""
    local = recipe.training.local
    return local.batches if local.batches is not None else (local.epochs or 1) * epoch_length(recipe, site, images)
