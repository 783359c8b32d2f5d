"""What the rows at paper size share: a site at work in the layout of a run, and both sides in turn."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, Literal

import torch

from benchmarks.measurement import Measurement, in_turn, middle, processor_seconds
from fedvisage import recipe as recipes
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View
from fedvisage.federation.site import Site
from fedvisage.methods import find, read_method
from fedvisage.recipe import Recipe
from fedvisage.runs.layout import with_chosen_settings
from fedvisage.tasks.catalogue import set_up

Precision = Literal["fp32", "bf16"]
CPU, FIRST = torch.device("cpu"), torch.contiguous_format
REPEATS = 3


def compared(
    claim: str, bound: float, house: Callable[[], object], plain: Callable[[], object], site: Site
) -> Measurement:
    """Time both sides in turn after one pass of each; the ratio of medians is judged."""
    house()
    plain()
    ours, theirs = in_turn(REPEATS, lambda: processor_seconds(house), lambda: processor_seconds(plain))
    ratio = median(theirs) / median(ours)
    return Measurement(
        claim,
        f"≥ {bound:g}",
        f"{ratio:.2f} ({middle(ours)} / {middle(theirs)}; {layout_of(site.recipe)}; medians of {REPEATS})",
        ratio >= bound,
    )


def layout_of(recipe: Recipe) -> str:
    """Return the layout and number format of a recipe in words."""
    return f"channels {recipe.runtime.layout}, {recipe.runtime.precision}"


def in_layout(recipe: Recipe) -> Recipe:
    """Return a recipe with the layout that a run would choose."""
    return with_chosen_settings(set_up(recipe, find(recipe.method)))


def recipe_of(
    method: str,
    own: dict[str, Any],
    size: int,
    colour: str,
    training: dict[str, Any],
    data: dict[str, Any] | None = None,
    precision: Precision = "fp32",
) -> Recipe:
    """Return a recipe for the CPU, whose layout is open."""
    tree = {
        "method": {"name": method, **own},
        "data": data or {"sites": {"A": "at hand"}},
        "input": {"size": size, "colour": colour},
        "training": {"rounds": 2, **training},
        "runtime": {"threads": torch.get_num_threads(), "layout": "auto", "device": "cpu", "precision": precision},
    }
    return recipes.validate(tree, read_method)


def at_work(recipe: Recipe, view: View, public: View | None = None) -> Site:
    """Return a site in its second round, with a network in the layout that a run would choose."""
    method = find(recipe.method)
    recipe = in_layout(recipe)
    setup = set_up(recipe, method)
    with seed_global_rng(0, "initial weights"):
        net = method.network(recipe)
    setup.compute.place(net)
    return Site("A", recipe, 2, view, net.train(), setup.compute, {}, {}, public=public)
