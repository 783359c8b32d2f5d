"""Pictures of one place that are also at another: equal ones, and those whose hashes are near.

Places are what must not have pictures in common, such as two sites, or a site's two splits. All pictures are looked up
for equal ones. Near ones take a comparison of each with each, so of very many pictures only some, evenly spread over
each place, are looked up, among all of the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_tensors, write_tensors
from fedvisage.base.progress import Say, unheard
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet

# What the pictures of a prepared set show, in a few bytes each, so that the same picture is found in another set.
#
# A picture has an exact digest, of its bytes, and a perceptual hash: the signs of the lowest 16×16 coefficients of a
# cosine transform of its grey levels, but for the mean. Pictures that were saved, resized or brightened again differ
# from
# themselves in few of the 255 signs; what was measured stands in docs/leakage.md. A plain picture, such as a black
# frame,
# has no structure to know it by and is marked.
#
# The table is kept in the cache under the digest of the set, never in the set: there a stranger could have written
# it.


FOLDER: Final = "contents"
VERSION: Final = "1"
"""Changes with anything that decides a digest or a hash."""

WAVES: Final = 16
"""Coefficients along each side."""

WORDS: Final = WAVES * WAVES // 64
_GRID = 32
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
_PLAIN = 2.0
"""Grey levels by which what a hash sees must vary."""

_BATCH_BYTES = 1 << 22
_LONG = 5_000
"""Pictures from which on it is said that a table is made."""

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Contents:
    """The digests and hashes of a set's pictures, in the order of its rows."""

    exact: Words
    hashes: Words
    """N×4 words; the highest bit of the last one is not used."""
    plain: npt.NDArray[np.bool_]


def contents_of(found: PreparedSet, cache: Path, say: Say = unheard) -> Contents:
    """Return what a set's pictures show: from the cache, or worked out and kept there where it can be."""
    path = cache / FOLDER / f"{found.digest}-{VERSION}.safetensors"
    known = _read(path, len(found))
    if known is not None:
        return known
    if len(found) >= _LONG:
        say(f"looking at the {len(found):,} pictures of {found.path}, once")
    made = look_at(found.images)
    tensors = {
        "exact": torch.from_numpy(made.exact.view(np.int64)),
        "hashes": torch.from_numpy(made.hashes.view(np.int64)),
        "plain": torch.from_numpy(made.plain),
    }
    with suppress(OSError, RunFailed):  # nothing depends on it: next time it is worked out again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors)
    return made


def look_at(images: npt.NDArray[np.uint8]) -> Contents:
    """Work out digests and hashes of N×S×S×3 pictures, some at a time."""
    count, size = images.shape[:2]
    exact, plain = np.empty(count, np.uint64), np.empty(count, np.bool_)
    hashes = np.empty((count, WORDS), np.uint64)
    step = max(1, _BATCH_BYTES // max(1, images[0].nbytes)) if count else 1
    for start in range(0, count, step):
        here = slice(start, start + step)
        batch = np.ascontiguousarray(images[here])
        exact[here] = [_digest(picture) for picture in batch]
        waves = _waves(batch, size)
        hashes[here] = np.packbits(waves > 0, axis=1, bitorder="little").view(np.uint64)
        plain[here] = 2 * np.linalg.norm(waves, axis=1) / _GRID**2 < _PLAIN
    return Contents(exact, hashes, plain)


def _digest(picture: npt.NDArray[np.uint8]) -> int:
    return int.from_bytes(hashlib.blake2b(picture.data, digest_size=8).digest(), "little")


def _waves(batch: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.float32]:
    """Return the coefficients of B pictures, the lowest first along each side; the mean's place holds 0, at the end."""
    basis = _basis(size)
    down = (basis @ batch.reshape(len(batch), size, size * 3).astype(np.float32)).reshape(-1, WAVES, size, 3) @ _GREY
    waves: npt.NDArray[np.float32] = np.roll((down @ basis.T).reshape(len(batch), -1), -1, axis=1)
    waves[:, -1] = 0
    return waves


@remembered
def _basis(size: int) -> npt.NDArray[np.float32]:
    """Return the rows that take pixels to coefficients: means over a grid of 32, then the cosine transform of these."""
    pixels, edges = np.arange(size), np.linspace(0, size, _GRID + 1)
    ends, starts = np.minimum(pixels + 1, edges[1:, None]), np.maximum(pixels, edges[:-1, None])
    means = np.clip(ends - starts, 0, None) / (size / _GRID)
    cosines = np.cos(np.pi * np.outer(np.arange(WAVES), np.arange(_GRID) + 0.5) / _GRID)
    rows: npt.NDArray[np.float32] = (cosines @ means).astype(np.float32)
    return rows


def _read(path: Path, count: int) -> Contents | None:
    """Return a kept table; one that is not there, or not whole, is as good as none."""
    if not path.exists():
        return None
    try:
        tensors, _ = read_tensors(path)
        exact, hashes, plain = (tensors[name].numpy() for name in ("exact", "hashes", "plain"))
    except (UserError, KeyError):
        return None
    if (exact.shape, hashes.shape, plain.shape) != ((count,), (count, WORDS), (count,)) or plain.dtype != np.bool_:
        return None
    return Contents(exact.view(np.uint64), hashes.view(np.uint64), plain)


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
