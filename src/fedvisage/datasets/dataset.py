"""Base class for dataset definitions: file layout, label rules and a small example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

from fedvisage.base.errors import UserError, printable
from fedvisage.data.rows import BONA_FIDE, PURPOSE
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import ARRAY_ENDINGS, VIDEO_ENDINGS, Tree, ending_of, fault_of_file, without_ending
from fedvisage.faces import pictures

# The files of a small copy, which show the layout of a dataset.

OTHERS = 100
"""First number of additional people in small copies: examples use lower numbers."""


@dataclass(frozen=True)
class Clip:
    """A video, image or HDF5 file with a rendered face: its path, person, species, and orientation.

    In an HDF5 file `layout` is the array of all frames, or with ``{}`` for its number the array of one frame. Another
    `take` shows the person at another time; `side` is the size in pixels of the face with its surroundings;
    if it is `cropped`, the picture shows nothing else.
    """

    path: str
    person: int
    species: str = "bonafide"
    turned: bool = False
    layout: str = "Color_Data"
    take: str = ""
    side: int = 128
    cropped: bool = False


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
            raise ValueError(f"{template} must have exactly the fields {', '.join(fields)}")
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


Kind = Literal["video", "image", "frames", "arrays"]
"""A video file, an image file, a folder whose images are the frames of a video, or an HDF5 file with frames."""

NO_GROUPS = "all"
"""The group of everyone in a set that has no groups."""

UNKNOWN_SHARE = 0.01
"""Maximum share of files with unknown names: more of them indicate another dataset or another version."""

SHOWN = 5
"""Number of unknown names to show."""

DEFAULT_OPTIONS = ImportOptions()

_ENDINGS: dict[Kind, tuple[str, ...]] = {
    "video": VIDEO_ENDINGS,
    "image": pictures.ENDINGS,
    "frames": pictures.ENDINGS,
    "arrays": ARRAY_ENDINGS,
}


@dataclass(frozen=True)
class Entry:
    """The information in a name.

    In a dataset of attacks the species decides the class, subjects of two parts are different people, and an empty
    ``subject`` makes the item its own person. For an image that is a frame of a video, ``video`` is the name of the
    video in the same folder, and ``frame`` its number. In a dataset of people, ``name`` is the photograph's name in the
    set if lists refer to it.
    """

    species: str
    subject: str
    split: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    video: str = ""
    frame: int = 0
    group: str = NO_GROUPS
    name: str = ""


@dataclass(frozen=True)
class Name:
    """One kind of names: their grammar, their reader, and the kind of files that they name.

    The reader returns an entry, or the reason to leave the file out.
    """

    grammar: Grammar
    read: Callable[[Mapping[str, str], ImportOptions], Entry | str]
    kind: Kind = "video"

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of such files."""
        return _ENDINGS[self.kind]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset: where it comes from, and the names of its files with their meaning."""

    kind: str
    title: str
    page: str
    """Page for requesting the dataset and reading its licence."""
    owner: str = ""
    """People to write to, if the page no longer opens."""
    expects: str
    """The layout, shown to users who look for the right root."""
    names: tuple[Name, ...] = ()
    columns: tuple[str, ...] = ()
    """Columns of its entries in addition to the standard ones."""
    example: tuple[Example, ...] = ()
    """A small copy, for tests and as an example of the layout."""

    @property
    def request(self) -> list[str]:
        """Describe in lines how to request the dataset."""
        if self.owner:
            return [f"available on request from {self.owner}", f"former page, which may no longer open: {self.page}"]
        return [f"available on request at {self.page}"] if self.page else []


def refuse_unknown_names(dataset: Dataset, root: Path, unknown: Sequence[str], known: int, files: str) -> None:
    """Raise a UserError for many unknown names, which indicate another dataset; a few are skipped."""
    count = known + len(unknown)
    if len(unknown) > UNKNOWN_SHARE * count:
        raise UserError(
            str(root),
            f"{len(unknown)} of {count} {files} have names that {dataset.title} does not use:"
            f" {', '.join(unknown[:SHOWN])}; remove them, or find another kind with `fedvisage data kinds`",
        )


def match_name(
    dataset: Dataset, file: str, options: ImportOptions = DEFAULT_OPTIONS
) -> tuple[Name, str, Entry | str] | None:
    """Return the kind of a file's name, the matching end of its path and its entry; None if no grammar matches."""
    for name in dataset.names:
        if ending_of(file) not in name.endings:
            continue
        path = str(PurePosixPath(file).parent) if name.kind == "frames" else without_ending(file)
        if parsed := name.grammar.parse(path):
            return name, parsed.name, name.read(parsed.fields, options)
    return None


@dataclass(frozen=True)
class NamedFile:
    """A file or a folder of frames: its kind, its path, the matching end of the path, and its entry."""

    name: Name
    path: str
    tail: str
    entry: Entry


@dataclass(frozen=True)
class NamedFiles:
    """The files of a dataset: known ones by name, unusable ones and left out ones with the reason, and all others."""

    known: dict[str, NamedFile] = field(default_factory=dict)
    skipped: list[SkippedFile] = field(default_factory=list)
    left_out: list[SkippedFile] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def read_names(
    dataset: Dataset, tree: Tree, options: ImportOptions = DEFAULT_OPTIONS, notes: tuple[str, ...] = ()
) -> NamedFiles:
    """Read every file's name; refuse a tree without known names, with the notes, or with two copies of one file."""
    files = NamedFiles()
    for file in tree.files:
        match = match_name(dataset, file, options)
        if match is None:
            files.unknown.append(file)
            continue
        name, tail, entry = match
        if isinstance(entry, str):
            files.left_out.append(SkippedFile(printable(file), entry))
            continue
        if fault := fault_of_file(tree.path(file), file, tree.root, name.endings):
            files.skipped.append(SkippedFile(printable(file), fault))
            continue
        # The first file of a folder of frames represents the folder.
        path = str(PurePosixPath(file).parent) if name.kind == "frames" else file
        first = files.known.setdefault(entry.name or tail, NamedFile(name, path, tail, entry))
        if first.path != path:
            fault = f"contains two copies of one file, {first.path} and {path}; give the folder of one copy"
            raise UserError(str(tree.root), fault)
    if not files.known:
        names = ", ".join(f"{name.grammar.template} ({name.endings[0]}, …)" for name in dataset.names)
        raise tree.mismatch("; ".join([f"does not match {dataset.title}: searched for {names}", *notes]))
    return files


# The videos and images of a dataset of attacks.

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
