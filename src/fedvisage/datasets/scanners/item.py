"""What a scanner says of one video or image, and of a whole dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedvisage.data.rows import BONA_FIDE, PURPOSE
from fedvisage.datasets.importers.report import Skipped

Kind = Literal["video", "image", "frames"]
"""A video file, an image file, or a folder whose images are the frames of a video."""


@dataclass(frozen=True)
class Choices:
    """What a person chose of a dataset: its enrolment videos too, and what its lists call bona fide."""

    enroll: bool = False
    live: str | None = None


@dataclass(frozen=True)
class Sighting:
    """What a name says: the species decides the class; subjects of two parts are different people."""

    species: str
    subject: str
    split: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    part: str = ""


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

    @property
    def label(self) -> int:
        """1 is bona fide, 0 an attack: it follows from the species, here and nowhere else."""
        return int(self.species == BONA_FIDE)

    @property
    def place(self) -> str:
        """Return where published counts have it: its purpose, else its official split."""
        return self.extra.get(PURPOSE) or self.split or "all"


@dataclass(frozen=True)
class Listing:
    """What a scanner found: what can be read, what cannot and why, and other files, counted by reason."""

    items: Sequence[Item]
    skipped: tuple[Skipped, ...] = ()
    stray: Mapping[str, int] = field(default_factory=Counter)
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
