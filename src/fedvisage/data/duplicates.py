"""Perceptual hashes of the pictures of prepared sets, and a search for copies between places.

Places are parts of a run that must not share pictures, such as two sites or two splits of a site. The search for
identical pictures covers all of them. The search for near copies compares every pair of hashes, so for very large
collections it takes an evenly spaced sample of each place and compares it with all other pictures.

A picture has an exact digest of its bytes and a perceptual hash: the signs of the lowest 16×16 coefficients of a cosine
transform of its grey levels, without the mean. A picture that was saved again, resized or brightened differs from the
original in few of the 255 signs; docs/leakage.md reports the measurements. Plain pictures, such as black frames, have
too little structure for a hash and are marked.

The cache stores the table under the digest of the set. The table is never stored in the set itself, which may come from
an untrusted source.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache as remembered
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_arrays, write_arrays
from fedvisage.base.progress import Say, discard
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet

FOLDER: Final = "contents"
VERSION: Final = "1"
"""Changes whenever the computation of a digest or hash changes."""

WAVES: Final = 16
"""Coefficients along each side."""

WORDS: Final = WAVES * WAVES // 64
_GRID = 32
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
_PLAIN = 2.0
"""Smallest variation, in grey levels, of the image content that a hash covers; pictures below it are plain."""

_BATCH_BYTES = 1 << 22
_LONG = 5_000
"""Smallest number of pictures for which the computation of a table is reported."""

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class PictureContents:
    """Digests and hashes of the pictures of a set, in the order of its rows."""

    exact: Words
    hashes: Words
    """N×4 words; the highest bit of the last word is unused."""
    plain: npt.NDArray[np.bool_]


def contents_of(prepared: PreparedSet, cache: Path, say: Say = discard) -> PictureContents:
    """Return the digests and hashes of a set from the cache; otherwise compute them and cache them if possible."""
    path = cache / FOLDER / f"{prepared.digest}-{VERSION}.safetensors"
    count = len(prepared)
    with suppress(UserError, KeyError):  # the cached table may be missing or damaged
        cached, _ = read_arrays(path)
        exact, hashes, plain = (cached[name] for name in ("exact", "hashes", "plain"))
        shapes = exact.shape, hashes.shape, plain.shape
        if shapes == ((count,), (count, WORDS), (count,)) and plain.dtype == np.bool_:
            return PictureContents(exact.view(np.uint64), hashes.view(np.uint64), plain)
    if count >= _LONG:
        say(f"hashing the {count:,} images of {prepared.path} (only once)")
    contents = compute_contents(prepared.images)
    arrays = {
        "exact": contents.exact.view(np.int64),
        "hashes": contents.hashes.view(np.int64),
        "plain": contents.plain,
    }
    with suppress(OSError, RunFailed):  # optional: without the file the table is computed again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, arrays)
    return contents


def compute_contents(images: npt.NDArray[np.uint8]) -> PictureContents:
    """Compute digests and hashes of N×S×S×3 pictures in batches."""
    count, size = images.shape[:2]
    exact, plain = np.empty(count, np.uint64), np.empty(count, np.bool_)
    hashes = np.empty((count, WORDS), np.uint64)
    step = max(1, _BATCH_BYTES // max(1, images[0].nbytes)) if count else 1
    for start in range(0, count, step):
        rows = slice(start, start + step)
        batch = np.ascontiguousarray(images[rows])
        exact[rows] = [
            int.from_bytes(hashlib.blake2b(picture.data, digest_size=8).digest(), "little") for picture in batch
        ]
        # Coefficients, lowest frequencies first; the mean is moved to the end and set to 0.
        basis = _basis(size)
        down = (basis @ batch.reshape(len(batch), size, size * 3).astype(np.float32)).reshape(
            -1, WAVES, size, 3
        ) @ _GREY
        waves: npt.NDArray[np.float32] = np.roll((down @ basis.T).reshape(len(batch), -1), -1, axis=1)
        waves[:, -1] = 0
        hashes[rows] = np.packbits(waves > 0, axis=1, bitorder="little").view(np.uint64)
        plain[rows] = 2 * np.linalg.norm(waves, axis=1) / _GRID**2 < _PLAIN
    return PictureContents(exact, hashes, plain)


@remembered
def _basis(size: int) -> npt.NDArray[np.float32]:
    """Return the matrix from pixels to coefficients: means over a grid of 32 cells, then their cosine transform."""
    pixels, edges = np.arange(size), np.linspace(0, size, _GRID + 1)
    ends, starts = np.minimum(pixels + 1, edges[1:, None]), np.maximum(pixels, edges[:-1, None])
    means = np.clip(ends - starts, 0, None) / (size / _GRID)
    cosines = np.cos(np.pi * np.outer(np.arange(WAVES), np.arange(_GRID) + 0.5) / _GRID)
    rows: npt.NDArray[np.float32] = (cosines @ means).astype(np.float32)
    return rows


NEAR: Final = 32
"""Largest number of differing signs (of 255) between hashes of one picture; independent pictures differ in over 50."""

MOST_COMPARISONS: Final = 400_000_000
"""Limit on comparisons of two hashes: 20,000 pictures with each other, or two seconds on one core."""

_TILE: Final = (64, 4096)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Copies:
    """Numbers of pictures of one place that also exist at another."""

    place: str
    other: str
    exact: int
    near: int
    """Compared pictures that have a near copy but no identical one."""
    of: int
    looked_at: int
    """Pictures of the place that were compared for near copies."""

    @property
    def share(self) -> float:
        """Estimated share of the place's pictures that also exist at the other place."""
        return self.exact / max(self.of, 1) + self.near / max(self.looked_at, 1)


@dataclass(frozen=True, eq=False)
class _Pictures:
    """All pictures of all places, concatenated."""

    place: Numbers
    person: Numbers
    """A number for each subject of each set."""
    exact: Words
    hashes: Words

    def __len__(self) -> int:
        return len(self.place)


def find_copies(
    places: Mapping[str, Sequence[View]], cache: Path, *, most: int = MOST_COMPARISONS, say: Say = discard
) -> tuple[list[Copies], dict[str, Copies]]:
    """Return copies between places: for each ordered pair of places, and for each place against all others.

    Near pictures of the same subject in the same set are not copies: frames of a video resemble each other, and
    subjects are compared by name instead. Plain pictures are ignored.
    """
    names = list(places)
    pictures = _gather_pictures(list(places.values()), cache, say)
    # The pictures to compare with all others: every picture, or every Nth of each place.
    step = max(1, -(-(len(pictures) ** 2) // most))
    sampled = (np.flatnonzero(pictures.place == number)[::step] for number in range(len(names)))
    probes = np.concatenate([np.empty(0, np.int64), *sampled])
    near = _find_near(pictures, probes)
    group = np.unique(pictures.exact, return_inverse=True)[1]
    # Each group of identical pictures at each place as one number, and how many of them the place has.
    held, counts = np.unique(group * len(names) + pictures.place, return_counts=True)
    near = near[~np.isin(group[near[:, 0]] * len(names) + near[:, 1], held)]
    totals, compared = (
        np.bincount(column, minlength=len(names)).tolist() for column in (pictures.place, pictures.place[probes])
    )
    equal = _count_equal(held // len(names), held % len(names), counts)
    alike = Counter(zip(pictures.place[near[:, 0]].tolist(), near[:, 1].tolist(), strict=True))
    pairs = [
        Copies(names[first], names[second], equal[first, second], alike[first, second], totals[first], compared[first])
        for first, second in sorted(equal.keys() | alike.keys())
    ]
    with_equal = np.flatnonzero((np.bincount(held // len(names)) > 1)[group])
    with_near_only = np.setdiff1d(near[:, 0], with_equal)
    equal_counts, near_counts = (
        np.bincount(pictures.place[members], minlength=len(names)) for members in (with_equal, with_near_only)
    )
    anywhere = {
        name: Copies(name, "", int(equal_counts[number]), int(near_counts[number]), totals[number], compared[number])
        for number, name in enumerate(names)
    }
    return pairs, anywhere


def _gather_pictures(places: Sequence[Sequence[View]], cache: Path, say: Say) -> _Pictures:
    nothing = np.empty(0, np.int64)
    pictures = [_Pictures(nothing, nothing, np.empty(0, np.uint64), np.empty((0, WORDS), np.uint64))]
    first_person, people = dict[str, int](), 0
    contents_by_digest: dict[str, PictureContents] = {}
    for number, views in enumerate(places):
        for part in (part for view in views for part in view.slices):
            digest = part.set.digest
            if digest not in contents_by_digest:
                contents_by_digest[digest] = contents_of(part.set, cache, say)
                first_person[digest], people = people, people + len(part.set.rows.coded("subject")[0])
            contents = contents_by_digest[digest]
            indices = part.indices[~contents.plain[part.indices]]
            person = first_person[digest] + part.set.rows.coded("subject")[1][indices]
            place = np.full(len(indices), number, np.int64)
            pictures.append(_Pictures(place, person, contents.exact[indices], contents.hashes[indices]))
    names = [field.name for field in fields(_Pictures)]
    return _Pictures(**{name: np.concatenate([getattr(part, name) for part in pictures]) for name in names})


def _count_equal(group: Numbers, place: Numbers, counts: Numbers) -> Counter[tuple[int, int]]:
    """Return the number of pictures of a place that another place has too, for each ordered pair of places.

    The arguments are columns with one row per group of identical pictures and place, in this order. Groups at the same
    places, as in sets that many sites share, are counted together, and no pair of a picture and a place is listed.
    """
    ends = np.cumsum(np.bincount(group))
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    shared = ends - starts > 1
    rows = np.stack([place, counts], axis=1)
    alike = Counter(
        rows[start:end].tobytes() for start, end in zip(starts[shared].tolist(), ends[shared].tolist(), strict=True)
    )
    involved = np.unique(place[shared[group]])
    totals = np.zeros((len(involved), len(involved)), np.int64)
    for content, times in alike.items():
        places, pictures = np.frombuffer(content, np.int64).reshape(-1, 2).T
        index = np.searchsorted(involved, places)
        totals[np.ix_(index, index)] += times * pictures[:, None]
    np.fill_diagonal(totals, 0)
    first, second = np.nonzero(totals)
    pairs = zip(involved[first].tolist(), involved[second].tolist(), strict=True)
    return Counter(dict(zip(pairs, totals[first, second].tolist(), strict=True)))


def _find_near(pictures: _Pictures, probes: Numbers) -> Numbers:
    """Return (picture, other place) for each probe that has a near copy at another place."""
    pairs: list[Numbers] = [np.empty((0, 2), np.int64)]
    rows, width = _TILE
    columns = np.ascontiguousarray(pictures.hashes.T)
    for start in range(0, len(probes), rows):
        tile = probes[start : start + rows]
        tile_hashes = columns[:, tile]
        for begin in range(0, len(pictures), width):
            block_hashes = columns[:, begin : begin + width]
            # The Hamming distance fits a byte: 255 at most, because the mean has no sign.
            distance = np.bitwise_count(tile_hashes[0][:, None] ^ block_hashes[0])
            for word in range(1, WORDS):
                distance += np.bitwise_count(tile_hashes[word][:, None] ^ block_hashes[word])
            tile_rows, block_columns = np.nonzero(distance <= NEAR)
            first, second = tile[tile_rows], block_columns + begin
            differs = (pictures.place[first] != pictures.place[second]) & (
                pictures.person[first] != pictures.person[second]
            )
            pairs.append(np.unique(np.stack([first[differs], pictures.place[second[differs]]], axis=1), axis=0))
    return np.unique(np.concatenate(pairs), axis=0)
