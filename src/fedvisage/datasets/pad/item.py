"""Videos, images and listings of scanners, the grammar of their names, and the files of small copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from fedvisage.data.prepared import BONA_FIDE, PURPOSE
from fedvisage.datasets.report import SkippedFile

# The files of a small copy, which show the layout of a dataset.


OTHERS = 100
"""First number of additional people in small copies: examples use lower numbers."""


@dataclass(frozen=True)
class Clip:
    """A video, image or HDF5 file with a rendered face: its path, person, species, and orientation.

    In an HDF5 file `layout` is the array of all frames, or with ``{}`` for its number the array of one frame. Another
    `take` shows the person at another time; `side` is the size in pixels of the face with its surroundings.
    """

    path: str
    person: int
    species: str = "bonafide"
    turned: bool = False
    layout: str = "Color_Data"
    take: str = ""
    side: int = 128


@dataclass(frozen=True)
class Text:
    """A list or another text file; line endings are written unchanged."""

    path: str
    content: str


Example = Clip | Text


# Grammars of file names: they parse the end of a path, and build it from the same fields.


_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class ParsedPath:
    """The fields of a path, and the end of the path that matched."""

    fields: dict[str, str]
    name: str


class Grammar:
    """Whole components of a path: a template such as ``{part}_files/{phone}_{file}`` and one expression per field.

    A template excludes the file's ending. The folders above are not part of the name, so a copy may be anywhere.
    """

    def __init__(self, template: str, **fields: str) -> None:
        """Take the template and the expression of each field."""
        if sorted(_FIELD.findall(template)) != sorted(fields):
            raise ValueError(f"{template} does not have just the fields {', '.join(fields)}")
        self.template, self.fields = template, fields

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        pieces = _FIELD.split(self.template)  # text, field, text, field, …, text
        written = [
            f"(?P<{piece}>{self.fields[piece]})" if place % 2 else re.escape(piece)
            for place, piece in enumerate(pieces)
        ]
        return re.compile(rf"(?:.*/)?(?P<whole_>{''.join(written)})", re.ASCII)

    def parse(self, path: str) -> ParsedPath | None:
        """Return the fields of a path without ending, or None if the path does not match."""
        match = self._expression.fullmatch(path)
        if match is None:
            return None
        fields = match.groupdict(default="")
        return ParsedPath(fields, fields.pop("whole_"))

    def build(self, values: Mapping[str, str]) -> str:
        """Return the path without ending for these field values."""
        for name, value in values.items():
            if not re.fullmatch(self.fields[name], value, re.ASCII):
                raise ValueError(f"{name} cannot be {value!r}")
        return self.template.format_map(values)


ALL = "all"
"""Key of the counts of a complete copy, and place of items without a split."""

Kind = Literal["video", "image", "frames", "arrays"]
"""A video file, an image file, a folder whose images are the frames of a video, or an HDF5 file with frames."""


@dataclass(frozen=True)
class ParsedName:
    """The information in a name: the species decides the class; subjects of two parts are different people.

    ``subject`` is empty if the name has none: the item then counts as its own person. For an image that is a frame of a
    video, ``video`` is the name of the video in the same folder, and ``frame`` its number.
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
