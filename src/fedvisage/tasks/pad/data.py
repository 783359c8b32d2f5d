"""From a recipe's data entries to views of prepared sets, with everything that can be wrong about them said first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedvisage.data.batches import View, check_view
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import Selection, select, splits_of, without_selection
from fedvisage.errors import UserError
from fedvisage.federation.declared import Declared
from fedvisage.metrics.threshold import ON_TRAINING
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import Opened, SiteData, merged, open_set
from fedvisage.tasks.overlap import HELD_OUT, SITE, USER, Places


def open_data(recipe: Recipe, method: Declared, cache: Path, say: Callable[[str], None]) -> Opened:
    """Open (and, for ``synth:`` lines, make) the sets of a recipe and check them against it and each other."""
    opened = {name: open_set(entry, f"data.sites.{name}", recipe, cache, say)
              for name, entry in sorted(recipe.data.sites.items())}  # fmt: skip
    meant = {name: without_selection(entry)[1] for name, entry in recipe.data.sites.items()}
    rule = recipe.evaluation.threshold
    sites = {name: _site(prepared, f"data.sites.{name}", meant[name], rule) for name, prepared in opened.items()}
    user = _user(recipe, cache, say)
    digests = {f"data.sites.{name}": prepared.digest for name, prepared in opened.items()}
    crops = {f"data.sites.{name}": prepared.crop for name, prepared in opened.items()}
    if user is not None:
        crops["data.user"] = user.slices[0].set.crop
    digests |= _digest_of(user)
    apart = _places(sites, user)
    return Opened(merged(sites) if method.pooled else sites, user, digests, crops=crops, places=apart)


def _user(recipe: Recipe, cache: Path, say: Callable[[str], None]) -> View | None:
    if recipe.data.user is None:
        return None
    prepared = open_set(recipe.data.user, "data.user", recipe, cache, say)
    user = View.of(prepared, None if recipe.data.user_split == "all" else recipe.data.user_split)
    user = select(user, without_selection(recipe.data.user)[1], "data.user")
    if len(user) == 0:
        raise UserError("data.user_split", f"the user's data has no images in split {recipe.data.user_split!r}")
    return user


def _site(prepared: PreparedSet, place: str, meant: Selection, rule: str) -> SiteData:
    train, heldout = splits_of(prepared, meant, place)
    check_view(train, place)
    if rule == ON_TRAINING:
        return SiteData(train, train)
    if meant.heldout == ():
        raise UserError(place, f"holds nothing out (heldout=none), and evaluation.threshold is {rule}; give "
                        f"{ON_TRAINING}, which goes by the scores of training")  # fmt: skip
    check_view(heldout, f"{place}{HELD_OUT}")
    return SiteData(train, heldout)


def _places(sites: dict[str, SiteData], user: View | None) -> Places:
    places = {f"{SITE}{name}": (site.train,) for name, site in sites.items()}
    places |= {f"{SITE}{name}{HELD_OUT}": (site.heldout,) for name, site in sites.items() if not site.all_trains}
    return places if user is None else {**places, USER: (user,)}


def _digest_of(user: View | None) -> dict[str, str]:
    return {} if user is None else {"data.user": user.slices[0].set.digest}
