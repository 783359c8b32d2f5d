"""Small prepared sets with known content."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer


def pixels(count: int, size: int = 8, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def columns_of(count: int, **columns: Any) -> dict[str, Any]:
    """Return the columns of training images, by default each of another bona fide person."""
    species = columns.get("species", ["bonafide"] * count)
    numbers = [str(number) for number in range(count)]
    defaults = {
        "label": [int(kind == "bonafide") for kind in species],
        "species": species,
        "subject": numbers,
        "video": columns.get("item", numbers),
        "frame": [0] * count,
        "split": ["train"] * count,
        "item": numbers,
    }
    return defaults | columns


def write_set(
    path: Path,
    images: npt.NDArray[np.uint8],
    *,
    name: str = "",
    source: str = "a test",
    crop: CropRecord | None = None,
    depth: npt.NDArray[np.uint8] | None = None,
    further: Mapping[str, Sequence[str]] | None = None,
    **columns: Any,
) -> PreparedSet:
    """Write a set; see `columns_of` for the columns that are not given."""
    with Writer(
        path,
        name=name or path.name,
        size=images.shape[1],
        source=source,
        depth=depth is not None,
        identities="group" in columns,
        crop=crop,
        further=tuple(further or ()),
    ) as out:
        out.add(images, depth=depth, further=further, **columns_of(len(images), **columns))
    return PreparedSet.open(path, verify=True)


def add_rows(out: Writer, first: int, count: int, images: npt.NDArray[np.uint8], split: str = "train") -> None:
    """Add rows `first`, `first + 1`, …: even ones bona fide, odd ones prints; a subject has two images of each."""
    numbers = range(first, first + count)
    columns = columns_of(
        count,
        species=["print" if n % 2 else "bonafide" for n in numbers],
        subject=[f"{split}-{n // 4}" for n in numbers],
        video=[f"{split}-{n // 4}-{n % 2}" for n in numbers],
        frame=[n // 2 % 2 for n in numbers],
        split=[split] * count,
        item=[f"{split}/{n:03d}.png" for n in numbers],
    )
    out.add(images, **columns)


def make_set(path: Path, *, name: str = "T", size: int = 8, train: int = 12, heldout: int = 8) -> PreparedSet:
    with Writer(path, name=name, size=size, source="made for a test") as out:
        add_rows(out, 0, train, pixels(train, size), "train")
        if heldout:
            add_rows(out, 0, heldout, pixels(heldout, size, seed=1), "heldout")
    return PreparedSet.open(path)
