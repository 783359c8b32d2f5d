"""Prepared sets: a dataset after import, in the one on-disk format that training and evaluation read.

A set is a directory. `set.json` says what it is and lists size and SHA-256 of every other file; `images.npy` holds
N×S×S×3 RGB bytes, `depth.npy` (optional) N×32×32 bytes, `points.npy` (optional) N×5×2 float32 pixels, `rows.csv` one
line per image, with further columns in sets of format 2. Arrays are memory-mapped, so a set may be larger than
memory; the reasons are in docs/decisions/0002-prepared-sets.md.

A set may have been made by somebody else: nothing in it is believed before it is checked, or ever executed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedvisage.data.crops import CropRecord
from fedvisage.data.manifest import (
    DEPTH,
    DEPTH_SIZE,
    IMAGES,
    POINT_COUNT,
    POINTS,
    ROWS,
    SET,
    FileName,
    Manifest,
    check_file,
    read_manifest,
)
from fedvisage.data.rows import Rows, read_rows
from fedvisage.data.writer import Writer
from fedvisage.errors import UserError

__all__ = ["PreparedSet", "Rows", "Writer"]


@dataclass(frozen=True, eq=False)
class PreparedSet:
    """An opened prepared set; arrays are read-only views of its files."""

    path: Path
    name: str
    size: int
    source: str
    digest: str
    rows: Rows
    images: npt.NDArray[np.uint8]
    depth: npt.NDArray[np.uint8] | None
    points: npt.NDArray[np.float32] | None
    crop: CropRecord | None = None
    """How the images were cut out, if that is known."""

    @staticmethod
    def open(path: Path, verify: bool = False) -> PreparedSet:
        """Open a set after checking its files; `verify` also compares their digests, reading everything."""
        try:
            return _opened(path, verify)
        except OSError as error:
            raise UserError(str(error.filename or path), f"cannot be read: {error.strerror or error}") from error

    def __reduce__(self) -> tuple[Callable[[Path, str], PreparedSet], tuple[Path, str]]:
        """Travel to another process as path and digest: there the files are mapped again, not copied."""
        return _opened_again, (self.path, self.digest)

    def __len__(self) -> int:
        """Count the images."""
        return len(self.rows)

    def select(self, split: str | None) -> npt.NDArray[np.int64]:
        """Return the indices of the images of a split, or of all images."""
        if split is None:
            return np.arange(len(self), dtype=np.int64)
        return np.flatnonzero(self.rows.split == split).astype(np.int64)


def _opened_again(path: Path, digest: str) -> PreparedSet:
    found = PreparedSet.open(path)
    if found.digest != digest:
        raise UserError(str(path), "was made anew while it was in use; start anew")
    return found


def _opened(path: Path, verify: bool) -> PreparedSet:
    manifest = read_manifest(path)
    for missing in {IMAGES, ROWS} - manifest.files.keys():
        raise UserError(str(path / SET), f"lists no {missing}; make the set again")
    for name, entry in manifest.files.items():
        check_file(path / name, entry, verify)
    points = _optional(path, manifest, POINTS, (POINT_COUNT, 2), np.float32)
    if points is not None and not np.isfinite(points).all():
        raise UserError(str(path / POINTS), "holds points that are not finite; make the set again")
    count, size = manifest.count, manifest.size
    return PreparedSet(
        path=path,
        name=manifest.name,
        size=size,
        source=manifest.source,
        digest=manifest.digest,
        rows=read_rows(path / ROWS, count),
        images=_mapped(path / IMAGES, (count, size, size, 3), np.uint8),
        depth=_optional(path, manifest, DEPTH, (DEPTH_SIZE, DEPTH_SIZE), np.uint8),
        points=points,
        crop=manifest.crops,
    )


def _optional(path: Path, manifest: Manifest, name: FileName, shape: tuple[int, ...], dtype: Any) -> Any:
    """Map an array that a set may have, or return None."""
    return _mapped(path / name, (manifest.count, *shape), dtype) if name in manifest.files else None


def _mapped(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    """Map an array file that must have this shape and type."""
    try:
        # open_memmap, not np.load: it reads plain arrays only, never a pickle or an archive.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy evaluates the header as Python text, which can raise anything
        raise UserError(str(path), f"not an array that can be mapped: {error}"[:300]) from None
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        actual = f"{array.dtype} {'×'.join(map(str, array.shape))}"
        wanted = f"{np.dtype(dtype)} {'×'.join(map(str, shape))}"
        raise UserError(str(path), f"holds {actual}, expected {wanted}; make the set again")
    return array
