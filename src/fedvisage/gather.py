"""From a recipe's data entries to views of prepared sets, with everything that can be wrong about them said first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedvisage.data.batches import View, check_view
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import ALL, Selection, select, without_selection
from fedvisage.data.sources import resolve
from fedvisage.errors import UserError
from fedvisage.federation.method import Message, Method
from fedvisage.recipe import Recipe

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
class Gathered:
    """All data of a run in this process."""

    sites: dict[str, SiteData]
    user: View | None
    digests: dict[str, str]
    people: People | None = None
    first: Message = field(default_factory=dict)
    """Pre-trained parts to start from."""


Gathering = Callable[[Recipe, Method, Path, int, Callable[[str], None]], Gathered]
"""Opens the data that a run needs in this process."""


def gather(recipe: Recipe, method: Method, cache: Path, workers: int, say: Callable[[str], None]) -> Gathered:
    """Open (and, for ``synth:`` lines, make) the sets of a recipe and check them against it and each other."""
    opened = {name: open_set(entry, f"data.sites.{name}", recipe, cache, workers, say)
              for name, entry in sorted(recipe.data.sites.items())}  # fmt: skip
    meant = {name: without_selection(entry)[1] for name, entry in recipe.data.sites.items()}
    sites = {name: _site(found, f"data.sites.{name}", meant[name]) for name, found in opened.items()}
    user = _user(recipe, cache, workers, say, opened)
    digests = {f"data.sites.{name}": found.digest for name, found in opened.items()}
    return Gathered(merged(sites) if method.pooled else sites, user, digests | _digest_of(user))


def _user(
    recipe: Recipe, cache: Path, workers: int, say: Callable[[str], None], sites: dict[str, PreparedSet]
) -> View | None:
    if recipe.data.user is None:
        return None
    found = open_set(recipe.data.user, "data.user", recipe, cache, workers, say)
    _check_unseen(found, sites)
    user = View.of(found, None if recipe.data.user_split == "all" else recipe.data.user_split)
    user = select(user, without_selection(recipe.data.user)[1], "data.user")
    if len(user) == 0:
        raise UserError("data.user_split", f"the user's data has no images in split {recipe.data.user_split!r}")
    return user


def _digest_of(user: View | None) -> dict[str, str]:
    return {} if user is None else {"data.user": user.slices[0].set.digest}


def open_set(
    entry: str, place: str, recipe: Recipe, cache: Path, workers: int, say: Callable[[str], None]
) -> PreparedSet:
    """Open the set of a data entry, rendering it into the cache if need be, and check that it fits the recipe."""
    source, _ = without_selection(entry)
    return _checked(PreparedSet.open(resolve(source, cache, workers=workers, say=say)), place, recipe)


def _checked(found: PreparedSet, place: str, recipe: Recipe) -> PreparedSet:
    if found.size != recipe.input.size:
        raise UserError(
            place,
            f"has {found.size}×{found.size} images, but input.size is {recipe.input.size}; prepare it at that size",
        )
    return found


def _site(found: PreparedSet, place: str, meant: Selection = ALL) -> SiteData:
    train, heldout = (select(View.of(found, split), meant, place) for split in ("train", "heldout"))
    check_view(train, place)
    check_view(heldout, f"{place} (held-out subjects)")
    return SiteData(train, heldout)


def _check_unseen(user: PreparedSet, sites: dict[str, PreparedSet]) -> None:
    """Refuse a user whose images, or rendered people, are also a site's."""
    own = set(np.unique(user.rows.subject).tolist())
    for name, found in sites.items():
        if found.digest == user.digest:
            raise UserError("data.user", f"is the same data as site {name}: a user must be unseen in training")
        both = own & set(np.unique(found.rows.subject).tolist())
        if both and found.name == user.name:
            raise UserError("data.user", f"shares {len(both)} subjects with site {name}, such as {min(both)!r}")


def merged(sites: dict[str, SiteData]) -> dict[str, SiteData]:
    """Return the one pseudo-site that has all sites' data."""
    train = View.joined([site.train for site in sites.values()])
    return {POOLED: SiteData(train, View.joined([site.heldout for site in sites.values()]))}
