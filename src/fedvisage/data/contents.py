"""What the pictures of a prepared set show, in a few bytes each, so that the same picture is found in another set.

A picture has an exact digest, of its bytes, and a perceptual hash: the signs of the lowest 16×16 coefficients of a
cosine transform of its grey levels, but for the mean. Pictures that were saved, resized or brightened again differ from
themselves in few of the 255 signs; what was measured stands in docs/leakage.md. A plain picture, such as a black frame,
has no structure to know it by and is marked.

The table is kept in the cache under the digest of the set, never in the set: there a stranger could have written it.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from fedvisage.data.prepared import PreparedSet
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import read_tensors, write_tensors
from fedvisage.progress import Say, unheard

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
