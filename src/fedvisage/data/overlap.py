"""Whether the pictures that a model is judged on, or chosen by, are also among those that it is trained on.

A user must be unseen in training, sites are different owners, and who is held out at a site is nobody who trains there.
Sets say by the names of their subjects where that is broken; a picture that was imported twice, perhaps under another
name or saved again, says it by its content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, unheard
from fedvisage.data.batches import View
from fedvisage.data.duplicates import NEAR, Copies, find_copies

USER: Final = "data.user"
PUBLIC: Final = "data.public"
SITE: Final = "data.sites."
HELD_OUT: Final = " (held-out subjects)"

OVERLAP: Final = "overlap.json"
ALLOW: Final = "--allow-overlap"
MOST: Final = 0.01
"""The share of a place's pictures that may be somewhere else: of very many photographs, a few are there twice."""

_SEED = re.compile(r"^synthetic .*\b(seed=\d+)")

Places = Mapping[str, Sequence[View]]
"""The pictures of each place of a recipe; a site's held-out subjects are a place of their own."""


@dataclass(frozen=True)
class Named:
    """Subjects whom the user's set and a site's set of the same dataset both name."""

    place: str
    other: str
    subjects: int
    one: str


@dataclass(frozen=True)
class Overlap:
    """What the places of a run have in common."""

    copies: tuple[Copies, ...]
    """By pair: of the user's pictures, else of the place of which the greater share is found."""
    named: tuple[Named, ...]
    anywhere: Mapping[str, Copies]
    """What each place shares with all others."""

    @property
    def too_much(self) -> list[Copies]:
        """The pairs of the places that share more than a trace with others."""
        return [one for one in self.copies if self.anywhere[one.place].share > MOST]

    def about(self, place: str) -> Overlap:
        """Return what is told of one place."""
        return Overlap(
            tuple(one for one in self.copies if one.place == place),
            tuple(one for one in self.named if one.place == place),
            {name: one for name, one in self.anywhere.items() if name == place},
        )

    def sentences(self, user_name: str = "") -> list[str]:
        """Return what there is in common, a line each."""
        copies = [(one.place, _counted(one), one.other) for one in self.copies]
        named = [(one.place, f"{one.subjects} subjects by name", one.other) for one in self.named]
        return [
            f"{words(place, user_name)} shares {what} with {words(other, user_name)}"
            for place, what, other in copies + named
        ]

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Overlap:
        """Return what a run has kept."""
        of, looked_at = content.get("pictures", {}), content.get("looked_at", {})

        def copies(place: str, other: str, row: Mapping[str, Any]) -> Copies:
            return Copies(place, other, int(row["exact"]), int(row["near"]), int(of[place]), int(looked_at[place]))

        named = ((str(row["place"]), str(row["with"]), int(row["subjects"])) for row in content.get("named", ()))
        return Overlap(
            tuple(copies(str(row["place"]), str(row["with"]), row) for row in content.get("shared", ())),
            tuple(Named(place, other, subjects, "") for place, other, subjects in named),
            {str(place): copies(place, "", row) for place, row in content.get("elsewhere", {}).items()},
        )

    def as_json(self, allowed: bool) -> dict[str, Any]:
        """Return it as a run keeps it; no subject has a name there."""
        return {
            "near": NEAR,
            "allowed": allowed,
            "pictures": {place: one.of for place, one in self.anywhere.items()},
            "looked_at": {place: one.looked_at for place, one in self.anywhere.items()},
            "elsewhere": {place: {"exact": one.exact, "near": one.near} for place, one in self.anywhere.items()},
            "shared": [
                {"place": one.place, "with": one.other, "exact": one.exact, "near": one.near} for one in self.copies
            ],
            "named": [{"place": one.place, "with": one.other, "subjects": one.subjects} for one in self.named],
        }


def look_for_overlap(places: Places, cache: Path, say: Say = unheard) -> Overlap:
    """Compare the pictures of all places, and the user's subjects with those of the same dataset elsewhere."""
    pairs, anywhere = find_copies(places, cache, say=say)
    shares = {(one.place, one.other): one.share for one in pairs}

    def told(one: Copies) -> bool:
        """Tell whether a pair is told from this end."""
        if USER in (one.place, one.other):
            return one.place == USER
        return (-one.share, one.place) < (-shares.get((one.other, one.place), 0.0), one.other)

    user, owners = places.get(USER, ()), dict[str, list[View]]()
    for place, views in places.items():
        if place != USER:
            owners.setdefault(place.removesuffix(HELD_OUT), []).extend(views)
    named = [found for place, views in owners.items() if (found := _named_in_both(user, place, views))]
    return Overlap(tuple(filter(told, pairs)), tuple(named), anywhere)


def check_apart(overlap: Overlap, allowed: bool, user_name: str = "") -> list[str]:
    """Return what places have in common, a line each; refuse more than a trace of it unless that is allowed."""
    if not allowed:
        for one in overlap.named:
            raise UserError(one.place, _refusal(f"{one.subjects} subjects, such as {one.one!r},", one, user_name))
        for most in sorted(overlap.too_much, key=lambda one: -one.share):
            raise UserError(most.place, _refusal(_counted(most), most, user_name))
    return overlap.sentences(user_name)


def words(place: str, user_name: str) -> str:
    """Say a place of a recipe in words."""
    whole = place.removesuffix(HELD_OUT)
    known = {USER: f"user {user_name}".rstrip(), PUBLIC: "the public set"}
    said = known.get(whole) or (f"site {whole.removeprefix(SITE)}" if whole.startswith(SITE) else whole)
    return said if whole == place else f"the held-out subjects of {said}"


def _refusal(what: str, found: Named | Copies, user_name: str) -> str:
    if found.place == USER:
        why = "a user must be unseen in training"
    elif found.place.endswith(HELD_OUT):
        why = "who is held out must not train"
    else:
        why = "what is at two places counts twice, and is no other owner's"
    return f"shares {what} with {words(found.other, user_name)}: {why}; take them out of one of the two, or add {ALLOW}"


def _counted(one: Copies) -> str:
    if one.near and one.looked_at < one.of:
        return f"{one.exact} of {one.of} pictures, and near ones of {one.near} of {one.looked_at} others,"
    return f"{one.exact + one.near} of {one.of} pictures"


def _named_in_both(user: Sequence[View], place: str, views: Sequence[View]) -> Named | None:
    """Return the subjects whom the user and a place both name in sets of one dataset, which has one name."""
    mine, theirs = _subjects(user), _subjects(views)
    both = sorted(who for name in mine.keys() & theirs.keys() for who in mine[name] & theirs[name])
    return Named(USER, place, len(both), both[0]) if both else None


def _subjects(views: Sequence[View]) -> dict[str, set[str]]:
    """Return the subjects of views by their dataset: its name, and of rendered people the seed that draws them."""
    found: dict[str, set[str]] = {}
    for part in (part for view in views for part in view.slices):
        drawn = _SEED.search(part.set.source)
        dataset = f"{part.set.name} {drawn[1]}" if drawn else part.set.name
        found.setdefault(dataset, set()).update(np.unique(part.set.rows.subject[part.indices]).tolist())
    return found
