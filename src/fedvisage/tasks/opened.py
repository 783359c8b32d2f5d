"""The data of a run as views of prepared sets: what every task's opening returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedvisage.data.batches import View
from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import without_selection
from fedvisage.datasets.sources import resolve
from fedvisage.errors import UserError
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Recipe
from fedvisage.tasks.crops import notice_of_set

POOLED = "all"
"""The name of the pseudo-site that holds all sites' data, for the baseline that breaks the rules."""


@dataclass(frozen=True)
class SiteData:
    """One site's two splits: what it trains on, and the other subjects that it keeps for choosing."""

    train: View
    heldout: View


@dataclass(frozen=True)
class People:
    """What recognition has besides: public images, whom each site must reject, and the sites as they were to judge."""

    public: View | None
    strangers: dict[str, View | None]
    apart: dict[str, SiteData]
    counted: dict[str, int]


@dataclass(frozen=True)
class Opened:
    """All data of a run in this process."""

    sites: dict[str, SiteData]
    user: View | None
    digests: dict[str, str]
    people: People | None = None
    first: Message = field(default_factory=dict)
    """Pre-trained parts to start from."""
    crops: dict[str, CropRecord | None] = field(default_factory=dict)
    """How each set was cropped, by its place in the recipe."""


def open_set(entry: str, place: str, recipe: Recipe, cache: Path, say: Callable[[str], None]) -> PreparedSet:
    """Open the set of a data entry, rendering it into the cache if need be, and check that it fits the recipe."""
    source, _ = without_selection(entry)
    found = PreparedSet.open(resolve(source, cache, workers=recipe.runtime.threads, say=say))
    for line in notice_of_set(found.crop, place):
        say(line)
    return _checked(found, place, recipe)


def _checked(prepared: PreparedSet, place: str, recipe: Recipe) -> PreparedSet:
    if prepared.size != recipe.input.size:
        raise UserError(
            place,
            f"has {prepared.size}×{prepared.size} images, but input.size is {recipe.input.size}; "
            "prepare it at that size",
        )
    return prepared


def merged(sites: dict[str, SiteData]) -> dict[str, SiteData]:
    """Return the one pseudo-site that has all sites' data."""
    train = View.joined([site.train for site in sites.values()])
    return {POOLED: SiteData(train, View.joined([site.heldout for site in sites.values()]))}
