"""The videos and images of a dataset of attacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvisage.data.rows import BONA_FIDE, PURPOSE
from fedvisage.datasets.dataset import Kind
from fedvisage.datasets.report import SkippedFile

ALL = "all"
"""Key of the counts of a complete copy, and place of items without a split."""


@dataclass(frozen=True)
class Item:
    """One video or image of a dataset; ``name`` does not depend on the location of the copy."""

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
    """Path of an image's depth map if it differs from the image's own name."""
    bgr: bool = False
    """True if the channels of an array are in the order blue, green, red."""

    @property
    def label(self) -> int:
        """1 for bona fide, 0 for an attack: the label is derived from the species only here."""
        return int(self.species == BONA_FIDE)

    @property
    def place(self) -> str:
        """Return the key of the item in published counts: its purpose, else its official split."""
        return self.extra.get(PURPOSE) or self.split or ALL


@dataclass(frozen=True)
class Listing:
    """The result of a scan: readable items, unusable files with the reason, and other files, counted by reason."""

    items: Sequence[Item]
    skipped: tuple[SkippedFile, ...] = ()
    stray: Mapping[str, int] = field(default_factory=Counter)
    examples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    expected: Mapping[str, tuple[int, int]] | None = None
    """Counts of a complete copy that differ from the published counts."""
