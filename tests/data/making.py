"""Small prepared sets with known content for the tests of this directory."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer


def pixels(count: int, size: int = 8, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def add_rows(out: Writer, first: int, count: int, images: npt.NDArray[np.uint8], split: str = "train") -> None:
    """Add rows `first`, `first + 1`, …: even ones bona fide, odd ones prints; a subject has two images of each."""
    numbers = range(first, first + count)
    out.add(
        images,
        label=[1 - n % 2 for n in numbers],
        species=["print" if n % 2 else "bonafide" for n in numbers],
        subject=[f"{split}-{n // 4}" for n in numbers],
        video=[f"{split}-{n // 4}-{n % 2}" for n in numbers],
        frame=[n // 2 % 2 for n in numbers],
        split=[split] * count,
        item=[f"{split}/{n:03d}.png" for n in numbers],
    )


def make_set(path: Path, *, name: str = "T", size: int = 8, train: int = 12, heldout: int = 8) -> PreparedSet:
    with Writer(path, name=name, size=size, source="made for a test") as out:
        add_rows(out, 0, train, pixels(train, size), "train")
        if heldout:
            add_rows(out, 0, heldout, pixels(heldout, size, seed=1), "heldout")
    return PreparedSet.open(path)
