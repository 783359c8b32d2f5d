"""What a scanner says of one video or image, and of a whole dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedvisage.data.rows import BONA_FIDE, PURPOSE
from fedvisage.datasets.importers.report import Skipped

ALL = "all"
"""Where counts of a whole copy stand, and items without a split."""

Kind = Literal["video", "image", "frames", "arrays"]
"""A video file, an image file, a folder whose images are the frames of a video, or an HDF5 file with frames."""


@dataclass(frozen=True)
class Choices:
    """What a person chose: enrolment videos, what lists call bona fide, whose frames these are, colours of arrays."""

    enroll: bool = False
    live: str | None = None
    of: str | None = None
    colour: str | None = None
    released: bool = False
    """Whether a known mistake of lists that were released is wanted."""


@dataclass(frozen=True)
class Sighting:
    """What a name says: the species decides the class; subjects of two parts are different people.

    Where the name does not say who it is, ``subject`` is empty: the item counts as a person of its own. An image that
    is one frame of a video says of which, ``video`` in the same folder, and its number ``frame``.
    """

    species: str
    subject: str
    split: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    video: str = ""
    frame: int = 0


@dataclass(frozen=True)
class Item:
    """One video or image of a dataset; ``name`` is the same wherever the copy lies."""

    path: Path
    name: str
    kind: Kind
    species: str
    subject: str
    video: str
    split: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    boxes: Path | None = None
    frame: int = 0
    own_subject: bool = False
    depth_name: str = ""
    """Where the depth map of an image lies if it is not at its own name."""
    bgr: bool = False
    """Whether an array has blue first."""

    @property
    def label(self) -> int:
        """1 is bona fide, 0 an attack: it follows from the species, here and nowhere else."""
        return int(self.species == BONA_FIDE)

    @property
    def place(self) -> str:
        """Return where published counts have it: its purpose, else its official split."""
        return self.extra.get(PURPOSE) or self.split or ALL


@dataclass(frozen=True)
class Listing:
    """What a scanner found: what can be read, what cannot and why, and other files, counted by reason."""

    items: Sequence[Item]
    skipped: tuple[Skipped, ...] = ()
    stray: Mapping[str, int] = field(default_factory=Counter)
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    expected: Mapping[str, tuple[int, int]] | None = None
    """How much a whole copy has, where that differs from what is published."""
