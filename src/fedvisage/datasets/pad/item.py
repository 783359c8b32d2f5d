"""What a scanner says of one video or image, and of a whole dataset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from fedvisage.data.prepared import BONA_FIDE, PURPOSE
from fedvisage.datasets.report import Skipped

# The files of a small copy of a dataset: what its scanner shows of the layout.


OTHERS = 100
"""Numbers of people from here on are those of further people: the examples themselves have lower ones."""


@dataclass(frozen=True)
class Clip:
    """A video, image or HDF5 file with a rendered face: where it lies, who is on it, as what, and how it stands.

    In an HDF5 file `layout` is the array of all frames, or with ``{}`` for its number the array of a frame. Clips with
    another `take` show the person at another time; `side` are the pixels of the face with its surroundings.
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
    """A list or another text file; lines end as they stand here."""

    path: str
    content: str


Example = Clip | Text


# How the files of a dataset are called: read from the end of a path, and built from the same fields.


_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Parsed:
    """The fields of a path, and the end of it that they were read from."""

    fields: dict[str, str]
    name: str


class Grammar:
    """Whole components of a path: a template such as ``{part}_files/{phone}_{file}`` and an expression a field.

    A template is without the file's ending. The folders above are not part of the name, so a copy may lie anywhere.
    """

    def __init__(self, template: str, **fields: str) -> None:
        """Take the template and what each of its fields may be."""
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

    def parse(self, path: str) -> Parsed | None:
        """Return the fields of a path without ending, or None if it is no name of this kind."""
        found = self._expression.fullmatch(path)
        if found is None:
            return None
        fields = found.groupdict(default="")
        return Parsed(fields, fields.pop("whole_"))

    def build(self, values: Mapping[str, str]) -> str:
        """Return the path without ending that has these fields."""
        for name, value in values.items():
            if not re.fullmatch(self.fields[name], value, re.ASCII):
                raise ValueError(f"{name} cannot be {value!r}")
        return self.template.format_map(values)


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
