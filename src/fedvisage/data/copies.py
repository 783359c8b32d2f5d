"""Pictures of one place that are also at another: equal ones, and those whose hashes are near.

Places are what must not have pictures in common, such as two sites, or a site's two splits. All pictures are looked up
for equal ones. Near ones take a comparison of each with each, so of very many pictures only some, evenly spread over
each place, are looked up, among all of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from fedvisage.data.batches import View
from fedvisage.data.contents import WORDS, Contents, Words, contents_of
from fedvisage.progress import Say, unheard

NEAR: Final = 32
"""Signs of 255 in which two hashes of one picture differ at most; independent pictures differ in more than 50."""

MOST_COMPARISONS: Final = 400_000_000
"""Comparisons of two hashes, all of 20,000 pictures: two seconds of one core."""

_TILE: Final = (64, 4096)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Copies:
    """How many pictures of a place are also at another one."""

    place: str
    other: str
    exact: int
    near: int
    """Among those looked at, the ones that have no equal."""
    of: int
    looked_at: int
    """Pictures of the place that were compared with those near them."""

    @property
    def share(self) -> float:
        """The share of the place's pictures that are also at the other, from those looked at."""
        return self.exact / max(self.of, 1) + self.near / max(self.looked_at, 1)


@dataclass(frozen=True, eq=False)
class _Pictures:
    """All pictures of all places, one after another."""

    place: Numbers
    person: Numbers
    """A number for each subject of each set."""
    exact: Words
    hashes: Words

    def __len__(self) -> int:
        return len(self.place)


def find_copies(
    places: Mapping[str, Sequence[View]], cache: Path, *, most: int = MOST_COMPARISONS, say: Say = unheard
) -> tuple[list[Copies], dict[str, Copies]]:
    """Return what places share, by pairs of them in both directions, and what each shares with all the others.

    Near pictures of one subject of one set are no copies: frames of a video are near each other, and who is where is
    known by name. Plain pictures are left out.
    """
    names = list(places)
    pictures = _gathered(list(places.values()), cache, say)
    probes = _probes(pictures, len(names), most)
    exact = _equal(pictures)
    near = _without(_near(pictures, probes), exact)
    of, looked_at = (np.bincount(column, minlength=len(names)).tolist() for column in
                     (pictures.place, pictures.place[probes]))  # fmt: skip
    equal, alike = _by_pair(exact, pictures), _by_pair(near, pictures)
    pairs = [
        Copies(names[one], names[two], equal[one, two], alike[one, two], of[one], looked_at[one])
        for one, two in sorted(equal.keys() | alike.keys())
    ]
    owners = np.unique(exact[:, 0])
    others = np.setdiff1d(near[:, 0], owners)
    equal_ones, near_ones = (np.bincount(pictures.place[found], minlength=len(names)) for found in (owners, others))
    anywhere = {
        name: Copies(name, "", int(equal_ones[number]), int(near_ones[number]), of[number], looked_at[number])
        for number, name in enumerate(names)
    }
    return pairs, anywhere


def _gathered(places: Sequence[Sequence[View]], cache: Path, say: Say) -> _Pictures:
    found: list[_Pictures] = []
    people: dict[tuple[str, str], int] = {}
    known: dict[str, Contents] = {}
    for number, views in enumerate(places):
        for part in (part for view in views for part in view.slices):
            digest = part.set.digest
            if digest not in known:
                known[digest] = contents_of(part.set, cache, say)
            contents = known[digest]
            indices = part.indices[~contents.plain[part.indices]]
            subjects = part.set.rows.subject[indices].tolist()
            person = [people.setdefault((digest, name), len(people)) for name in subjects]
            place = np.full(len(indices), number, np.int64)
            found.append(
                _Pictures(place, np.array(person, np.int64), contents.exact[indices], contents.hashes[indices])
            )
    nothing = np.empty(0, np.int64)
    parts = [_Pictures(nothing, nothing, np.empty(0, np.uint64), np.empty((0, WORDS), np.uint64)), *found]
    return _Pictures(
        np.concatenate([part.place for part in parts]),
        np.concatenate([part.person for part in parts]),
        np.concatenate([part.exact for part in parts]),
        np.concatenate([part.hashes for part in parts]),
    )


def _probes(pictures: _Pictures, places: int, most: int) -> Numbers:
    """Return which pictures are compared with all others: every one, or every so-manieth of each place."""
    step = max(1, -(-(len(pictures) ** 2) // most))
    return np.concatenate(
        [np.empty(0, np.int64), *(np.flatnonzero(pictures.place == place)[::step] for place in range(places))]
    )


def _equal(pictures: _Pictures) -> Numbers:
    """Return pictures that have an equal at another place: the picture's number, and that place's."""
    _, group, members = np.unique(pictures.exact, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(members[group] > 1)
    homes: dict[int, set[int]] = {}
    for number, place in zip(group[shared].tolist(), pictures.place[shared].tolist(), strict=True):
        homes.setdefault(number, set()).add(place)
    found = [
        (one, other)
        for one in shared.tolist()
        for other in sorted(homes[int(group[one])])
        if other != int(pictures.place[one])
    ]
    return np.array(found, np.int64).reshape(-1, 2)


def _near(pictures: _Pictures, probes: Numbers) -> Numbers:
    """Return pictures that have a near one at another place, in the same way."""
    found: list[Numbers] = [np.empty((0, 2), np.int64)]
    rows, width = _TILE
    columns = np.ascontiguousarray(pictures.hashes.T)
    for start in range(0, len(probes), rows):
        tile = probes[start : start + rows]
        mine = columns[:, tile]
        for begin in range(0, len(pictures), width):
            theirs = columns[:, begin : begin + width]
            distance = np.bitwise_count(mine[0][:, None] ^ theirs[0])
            for word in range(1, WORDS):
                distance += np.bitwise_count(mine[word][:, None] ^ theirs[word])  # 255 at most: the mean has no sign
            which, other = np.nonzero(distance <= NEAR)
            one, two = tile[which], other + begin
            apart = (pictures.place[one] != pictures.place[two]) & (pictures.person[one] != pictures.person[two])
            found.append(np.stack([one[apart], pictures.place[two[apart]]], axis=1))
    return np.unique(np.concatenate(found), axis=0)


def _without(found: Numbers, known: Numbers) -> Numbers:
    """Return what was found and is not known already."""
    places = int(max(found[:, 1].max(initial=0), known[:, 1].max(initial=0))) + 1
    return found[~np.isin(found @ [places, 1], known @ [places, 1])]


def _by_pair(found: Numbers, pictures: _Pictures) -> Counter[tuple[int, int]]:
    return Counter(zip(pictures.place[found[:, 0]].tolist(), found[:, 1].tolist(), strict=True))
