"""Overlap of training data with evaluation data, between sites, and with held-out subjects.

The target must be unseen in training, sites are different owners, and held-out subjects of a site must not be in its
training data. Subject names reveal violations within one dataset. Image content reveals a picture that was imported
twice, perhaps under another name or after saving it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, discard
from fedvisage.data.batches import View
from fedvisage.data.duplicates import NEAR, Copies, find_copies

TARGET: Final = "data.target"
PUBLIC: Final = "data.public"
SITE: Final = "data.sites."
"""Prefix of a site's key; with ``TARGET`` and ``PUBLIC``, the places of a run's data in recipes and files."""
HELD_OUT: Final = " (held-out subjects)"

OVERLAP: Final = "overlap.json"
ALLOW: Final = "--allow-overlap"
MOST: Final = 0.01
"""Largest share of a place's pictures that may also be elsewhere: very large collections contain a few duplicates."""

_SEED = re.compile(r"^synthetic .*\b(seed=\d+)")

Subjects = dict[str, set[str]]
Places = Mapping[str, Sequence[View]]
"""The pictures of each place of a recipe. The held-out subjects of a site are a separate place."""


@dataclass(frozen=True)
class SharedSubjects:
    """Number of subjects named both in the target's set and in a site's set of the same dataset."""

    place: str
    other: str
    subjects: int
    example: str


@dataclass(frozen=True)
class Overlap:
    """Pictures and subjects that the places of a run share."""

    copies: tuple[Copies, ...]
    """One entry per pair of places, reported for the target or else for the place with the larger share."""
    named: tuple[SharedSubjects, ...]
    anywhere: Mapping[str, Copies]
    """The pictures that each place shares with all others."""

    def about(self, place: str) -> Overlap:
        """Return the entries of one place."""
        return Overlap(
            tuple(copies for copies in self.copies if copies.place == place),
            tuple(named for named in self.named if named.place == place),
            {name: copies for name, copies in self.anywhere.items() if name == place},
        )

    def sentences(self, target_name: str = "") -> list[str]:
        """Describe the overlap, one sentence per pair of places."""
        copies = [(entry.place, _format_count(entry), entry.other) for entry in self.copies]
        named = [(entry.place, f"{entry.subjects} subjects by name", entry.other) for entry in self.named]
        return [
            f"{describe_place(place, target_name)} {'share' if place.endswith(HELD_OUT) else 'shares'} {shared} with "
            f"{describe_place(other_place, target_name)}"
            for place, shared, other_place in copies + named
        ]

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Overlap:
        """Read the overlap from the JSON of a run."""
        totals, looked_at = content.get("pictures", {}), content.get("looked_at", {})

        def copies(place: str, other: str, row: Mapping[str, Any]) -> Copies:
            return Copies(place, other, int(row["exact"]), int(row["near"]), int(totals[place]), int(looked_at[place]))

        named = ((str(row["place"]), str(row["with"]), int(row["subjects"])) for row in content.get("named", ()))
        return Overlap(
            tuple(copies(str(row["place"]), str(row["with"]), row) for row in content.get("shared", ())),
            tuple(SharedSubjects(place, other_place, subjects, "") for place, other_place, subjects in named),
            {str(place): copies(place, "", row) for place, row in content.get("elsewhere", {}).items()},
        )

    def as_json(self, allowed: bool) -> dict[str, Any]:
        """Return the JSON to store with a run; it contains no subject names."""
        return {
            "near": NEAR,
            "allowed": allowed,
            "pictures": {place: copies.of for place, copies in self.anywhere.items()},
            "looked_at": {place: copies.looked_at for place, copies in self.anywhere.items()},
            "elsewhere": {
                place: {"exact": copies.exact, "near": copies.near} for place, copies in self.anywhere.items()
            },
            "shared": [
                {"place": copies.place, "with": copies.other, "exact": copies.exact, "near": copies.near}
                for copies in self.copies
            ],
            "named": [{"place": named.place, "with": named.other, "subjects": named.subjects} for named in self.named],
        }


def find_overlap(places: Places, cache: Path, say: Say = discard) -> Overlap:
    """Compare the pictures of all places, and the target's subjects with those of the same dataset elsewhere."""
    pairs, anywhere = find_copies(places, cache, say=say)
    shares = {(copies.place, copies.other): copies.share for copies in pairs}

    def is_reported(copies: Copies) -> bool:
        """Return True if the pair is reported from this end."""
        if TARGET in (copies.place, copies.other):
            return copies.place == TARGET
        reverse = shares.get((copies.other, copies.place), 0.0)
        return (-copies.share, copies.place) < (-reverse, copies.other)

    target, owners = _subjects(places.get(TARGET, ())), dict[str, list[View]]()
    for place, views in places.items():
        if place != TARGET:
            owners.setdefault(place.removesuffix(HELD_OUT), []).extend(views)
    named = []
    for place, views in owners.items():
        subjects = _subjects(views)
        shared = sorted(name for dataset in target.keys() & subjects for name in target[dataset] & subjects[dataset])
        if shared:
            named.append(SharedSubjects(TARGET, place, len(shared), shared[0]))
    return Overlap(tuple(filter(is_reported, pairs)), tuple(named), anywhere)


def refuse_overlap(overlap: Overlap, allowed: bool, target_name: str = "") -> list[str]:
    """Describe the overlap, one sentence per pair; raise a UserError if it is not allowed and more than a trace.

    A trace is a share of pictures up to `MOST`; shared subject names are never a trace.
    """
    if not allowed:
        for named in overlap.named:
            raise UserError(
                named.place, _refusal(f"{named.subjects} subjects, such as {named.example!r},", named, target_name)
            )
        copied = [copies for copies in overlap.copies if overlap.anywhere[copies.place].share > MOST]
        for worst in sorted(copied, key=lambda copies: -copies.share):
            raise UserError(worst.place, _refusal(_format_count(worst), worst, target_name))
    return overlap.sentences(target_name)


def describe_place(place: str, target_name: str) -> str:
    """Describe a place of a recipe in words."""
    owner = place.removesuffix(HELD_OUT)
    names = {TARGET: f"target {target_name}".rstrip(), PUBLIC: "the public set"}
    description = names.get(owner) or (f"site {owner.removeprefix(SITE)}" if owner.startswith(SITE) else owner)
    return description if owner == place else f"the held-out subjects of {description}"


def _refusal(what: str, overlap: SharedSubjects | Copies, target_name: str) -> str:
    if overlap.place == TARGET:
        why = "a target must be unseen in training"
    elif overlap.place.endswith(HELD_OUT):
        why = "held-out subjects must not be trained on"
    else:
        why = "an image at two sites is counted twice and does not belong to one owner"
    place = describe_place(overlap.other, target_name)
    same = overlap.place.removesuffix(HELD_OUT) == overlap.other.removesuffix(HELD_OUT)
    frames = ", import frames of one person with --heldout 0" if same else ""
    return f"shares {what} with {place}: {why}; take them out of one of the two{frames}, or add {ALLOW}"


def _format_count(copies: Copies) -> str:
    if copies.near and copies.looked_at < copies.of:
        return f"{copies.exact} of {copies.of} pictures, and near ones of {copies.near} of {copies.looked_at} others,"
    return f"{copies.exact + copies.near} of {copies.of} pictures"


def _subjects(views: Sequence[View]) -> Subjects:
    """Return the subjects of views, grouped by dataset: sets of one name, of rendered people also with one seed."""
    subjects: dict[str, set[str]] = {}
    for part in (part for view in views for part in view.slices):
        seed = _SEED.search(part.set.source)
        dataset = f"{part.set.name} {seed[1]}" if seed else part.set.name
        subjects.setdefault(dataset, set()).update(np.unique(part.set.rows.subject[part.indices]).tolist())
    return subjects
