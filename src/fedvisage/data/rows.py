"""The rows of prepared sets: the rules that they obey, and `rows.csv` as one array per column.

The same rules apply when a set is written and when it is opened. A table with millions of rows is read in blocks of
whole columns. Only a table in which such a block may break a rule is read row by row, to report the first fault.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import UserError

BONA_FIDE = "bonafide"
SPLITS = ("train", "heldout", "test")
COLUMNS = ("item", "label", "species", "subject", "video", "frame", "split")
GROUP = "group"
OFFICIAL = "official"
"""Further column: the split made by the dataset's authors."""
PURPOSE, ENROL = "purpose", "enroll"
"""Further column, and its value for videos that enrol a person."""

_FURTHER = re.compile(r"[a-z][a-z0-9_]{0,31}")
_FURTHER_LIMIT = 32
_SPECIES = re.compile(r"[a-z0-9_-]{1,64}")
_TEXT_LIMIT = 255
_FRAME_LIMIT = 2**31 - 1

Texts = npt.NDArray[np.str_]
Coded = tuple[Texts, npt.NDArray[np.int64]]
"""The sorted unique values of a column, and the number of each row's value among them."""


@dataclass(frozen=True)
class ImageRow:
    """Metadata of one image. Label 1 is bona fide, 0 is an attack. Only identity sets have groups."""

    item: str
    label: int
    species: str
    subject: str
    video: str
    frame: int
    split: str
    group: str | None = None
    further: tuple[str, ...] = ()

    def values(self) -> tuple[str | int, ...]:
        """Return the values in the order of `COLUMNS`, followed by the group, if any, and the further values."""
        plain = (self.item, self.label, self.species, self.subject, self.video, self.frame, self.split)
        return (*plain, *self.further) if self.group is None else (*plain, self.group, *self.further)


@dataclass(frozen=True, eq=False)
class ImageRows:
    """The rows of a set as one array per column, in the order of its images."""

    label: npt.NDArray[np.uint8]
    species: Texts
    subject: Texts
    video: Texts
    frame: npt.NDArray[np.int32]
    split: Texts
    item: Texts
    group: Texts | None = None
    further: Mapping[str, Texts] = field(default_factory=dict)
    _coded: dict[str, Coded] = field(init=False, repr=False, default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.label)

    def coded(self, name: str) -> Coded:
        """Return a column of texts as its sorted unique values and, for each row, the number of its value.

        The result is kept, because many sites can be parts of one set, and numbers are compared much faster than texts.
        """
        if name not in self._coded:
            column = self.further[name] if name in self.further else getattr(self, name)
            texts = column.tolist()
            values = sorted(set(texts))
            numbers = dict(zip(values, range(len(values)), strict=True))
            codes = np.fromiter(map(numbers.__getitem__, texts), np.int64, len(texts))
            self._coded[name] = np.array(values, column.dtype), codes
        return self._coded[name]


class RowRules:
    """Checks rows in sequence, against themselves and against earlier items, subjects and videos."""

    def __init__(self, place: str) -> None:
        """Start without rows; errors will name this place."""
        self._place = place
        self._items: set[str] = set()
        self._split_of: dict[str, str] = {}
        self._group_of: dict[str, str | None] = {}
        self._first_of: dict[str, ImageRow] = {}

    def check(self, row: ImageRow) -> None:
        """Raise a UserError if the row is invalid or contradicts an earlier row."""
        fault = _fault(row) or self._conflict(row)
        if fault:
            raise UserError(self._place, f"image {row.item[:120]!r}: {fault}")
        self._items.add(row.item)
        self._split_of[row.subject] = row.split
        self._first_of.setdefault(row.video, row)

    def _conflict(self, row: ImageRow) -> str | None:
        if row.item in self._items:
            return "this item appears twice; items must be unique"
        earlier = self._split_of.get(row.subject, row.split)
        if earlier != row.split and (row.group is None or "heldout" in (earlier, row.split)):
            return f"subject {row.subject!r} is in two splits, {earlier} and {row.split}; split by subject"
        if self._group_of.setdefault(row.subject, row.group) != row.group:
            return (
                f"identity {row.subject!r} is in two groups, {self._group_of[row.subject]} and {row.group}; choose one"
            )
        first = self._first_of.get(row.video, row)
        if first.label != row.label:
            return f"video {row.video!r} mixes bona fide images and attacks; use one video per class"
        if first.subject != row.subject:
            return f"video {row.video!r} shows two subjects, {first.subject!r} and {row.subject!r}; rename one"
        return None


def _fault(row: ImageRow) -> str | None:
    """Return the fault of a single row, or None."""
    if row.label not in (0, 1):
        return f"label must be 1 (bona fide) or 0 (attack), got {row.label}"
    if not _SPECIES.fullmatch(row.species):
        return f"species must be lower-case letters, digits, '_' or '-', got {row.species[:80]!r}"
    if (row.label == 1) != (row.species == BONA_FIDE):
        return f"label {row.label} contradicts species {row.species!r} (1 goes with {BONA_FIDE!r} only)"
    if row.group is not None and (row.label != 1 or not _SPECIES.fullmatch(row.group)):
        return f"an identity set has bona fide images only, and groups such as 'north-2', got {row.group[:80]!r}"
    if row.split not in SPLITS:
        return f"split must be one of {', '.join(SPLITS)}, got {row.split[:80]!r}"
    if not 0 <= row.frame <= _FRAME_LIMIT:
        return f"frame must be between 0 and {_FRAME_LIMIT}, got {row.frame}"
    if any(len(text) > _TEXT_LIMIT or not text.isprintable() for text in row.further):
        return f"further columns have up to {_TEXT_LIMIT} printable characters"
    for column in ("item", "subject", "video"):
        text = getattr(row, column)
        if not text or len(text) > _TEXT_LIMIT or not text.isprintable():
            return f"{column} must be 1 to {_TEXT_LIMIT} printable characters, got {text[:80]!r}"
    return None if is_safe_path(row.item) else "items are relative paths with '/' and without '..'"


def is_safe_path(text: str) -> bool:
    """Return True if a path stays inside the directory that it is joined to, on any system."""
    drive = len(text) > 1 and text[1] == ":"
    plain = not text.startswith("/") and "\\" not in text and not drive
    return plain and str(PurePosixPath(text)) == text and text != "." and ".." not in text.split("/")


def are_further(names: Sequence[str]) -> bool:
    """Return True if these are valid names of further columns."""
    fit = all(_FURTHER.fullmatch(name) for name in names) and len(names) <= _FURTHER_LIMIT
    return fit and len({*names, *COLUMNS, GROUP}) == len(names) + len(COLUMNS) + 1


def as_columns(rows: Sequence[ImageRow], further: Sequence[str] = ()) -> ImageRows:
    """Convert rows to typed, read-only columns."""
    columns = {name: np.array([getattr(row, name) for row in rows], dtype=np.str_) for name in _TEXTS}
    columns |= {name: np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in _NUMBERS}
    if rows and rows[0].group is not None:
        columns[GROUP] = np.array([row.group for row in rows], dtype=np.str_)
    for place, name in enumerate(further):
        columns[name] = np.array([row.further[place] for row in rows], dtype=np.str_)
    return _image_rows(columns, further)


def _image_rows(columns: dict[str, npt.NDArray[Any]], further: Sequence[str]) -> ImageRows:
    columns["label"], columns["frame"] = columns["label"].astype(np.uint8), columns["frame"].astype(np.int32)
    for column in columns.values():
        column.flags.writeable = False
    return ImageRows(
        **{name: column for name, column in columns.items() if name not in further},
        further={name: columns[name] for name in further},
    )


def read_rows(path: Path, count: int) -> ImageRows:
    """Read and check the rows of a set with `count` images."""
    place = str(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _read_columns(file, place)
            if rows is None:
                file.seek(0)
                reader, rules, checked = csv.reader(file, strict=True), RowRules(place), list[ImageRow]()
                header = next(reader, [])
                _, further = _columns(header, place)
                for row in _rows_below_header(header, reader, place):
                    rules.check(row)
                    checked.append(row)
                rows = as_columns(checked, further)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(place, f"not a readable table: {error}; create the set again") from None
    if len(rows) != count:
        raise UserError(place, f"has {len(rows)} rows where set.json promises {count}; create the set again")
    return rows


def _read_columns(file: IO[str], place: str) -> ImageRows | None:
    """Read a table without quotes as whole columns; return None if a row may break a rule."""
    header = file.readline().removesuffix("\n")
    if '"' in header or not header.isprintable():
        return None
    names = header.split(",")
    _, further = _columns(names, place)
    table = _Table(names)
    while text := file.read(_BLOCK) + file.readline():
        if not table.add(text):
            return None
    columns = table.columns()
    return None if columns is None else _image_rows(columns, further)


_TEXTS, _NUMBERS = ("item", "species", "subject", "video", "split"), ("label", "frame")
_BLOCK = 1 << 16
"""Characters of a table that are read at once."""
_UNUSUAL = ("\\", ":", "//", "\n/", "/\n", "\n\n", "\n.", "/.")
"""Parts of unsafe paths, in a text of one path per line. A path without them is safe."""


class _Table:
    """The columns of a table, added in blocks of lines.

    The checks are those of `RowRules`. They may refuse a valid row, and never accept an invalid one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._count = names, 0
        self._blocks: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._items: set[str] = set()
        self._videos: set[tuple[str, ...]] = set()
        self._subjects: set[tuple[str, ...]] = set()

    def add(self, text: str) -> bool:
        """Add lines; return False if one of them may break a rule."""
        lines = text.removesuffix("\n").split("\n")
        if '"' in text or not "".join(lines).isprintable():
            return False
        # Without quotes, a field cannot contain a comma, so all values split at once.
        if {line.count(",") for line in lines} != {len(self._names) - 1}:
            return False
        values = ",".join(lines).split(",")
        if max(map(len, lines)) > _TEXT_LIMIT < max(map(len, values)):
            return False
        columns = {name: values[number :: len(self._names)] for number, name in enumerate(self._names)}
        self._count += len(lines)
        self._items.update(columns["item"])
        self._videos.update(zip(columns["video"], columns["label"], columns["subject"], strict=True))
        fixed = [columns[name] for name in ("label", "species", "subject", "split", GROUP) if name in columns]
        self._subjects.update(zip(*fixed, strict=True))
        try:
            for name, column in columns.items():
                array = np.fromiter(map(int, column), np.int64) if name in _NUMBERS else np.array(column)
                self._blocks[name].append(array)
        except (ValueError, OverflowError):
            return False
        # Most paths have no unusual character, so one search over all of them replaces a check of each.
        frames = self._blocks["frame"][-1]
        paths = "\n".join(["", *columns["item"], ""])
        return (
            bool(frames.min() >= 0 and frames.max() <= _FRAME_LIMIT)
            and "" not in columns["video"]
            and (not any(mark in paths for mark in _UNUSUAL) or all(map(is_safe_path, columns["item"])))
        )

    def columns(self) -> dict[str, npt.NDArray[Any]] | None:
        """Return the columns of all blocks; None if a subject, label or split breaks a rule, or rows contradict."""
        rules = RowRules("")
        try:
            for number, (label, species, subject, split, *group) in enumerate(self._subjects):
                name = str(number)
                rules.check(ImageRow(name, int(label), species, subject, name, 0, split, group[0] if group else None))
        except UserError:
            return None
        videos = {video for video, _, _ in self._videos}
        if not len(self._items) == self._count > 0 or len(videos) != len(self._videos):
            return None
        return {name: np.concatenate(blocks) for name, blocks in self._blocks.items()}


def rows_of(lines: Iterable[str], place: str) -> Iterator[ImageRow]:
    """Yield the rows of a table; an empty table has none."""
    reader = csv.reader(lines, strict=True)
    if header := next(reader, None):
        yield from _rows_below_header(header, reader, place)


def _rows_below_header(header: list[str], lines: Iterable[list[str]], place: str) -> Iterator[ImageRow]:
    """Yield the rows after the header."""
    grouped, further = _columns(header, place)
    known_count = len(COLUMNS) + grouped
    count = known_count + len(further)
    for number, values in enumerate(lines, 2):
        try:
            if len(values) != count:
                raise ValueError
            item, label, species, subject, video, frame, split = values[: len(COLUMNS)]
            group = values[known_count - 1] if grouped else None
            rest = tuple(values[known_count:])
            row = ImageRow(item, int(label), species, subject, video, int(frame), split, group, rest)
        except ValueError:
            raise UserError(place, f"line {number} does not have the {count} values of a row") from None
        yield row


def _columns(header: list[str], place: str) -> tuple[bool, list[str]]:
    """Return whether a table has groups, and its further columns."""
    fixed, rest = tuple(header[: len(COLUMNS)]), header[len(COLUMNS) :]
    grouped = rest[:1] == [GROUP]
    further = rest[grouped:]
    if fixed != COLUMNS or not are_further(further):
        message = f"the first line must be {','.join(COLUMNS)}, in an identity set with ,{GROUP}, then further columns"
        raise UserError(place, f"{message}, in lower case and without duplicates")
    return grouped, further
