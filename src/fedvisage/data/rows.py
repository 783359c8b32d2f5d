"""What is known about each image of a prepared set, and the rules that hold for it.

The same rules are applied when a set is written and when it is opened, because a set may come from anywhere. On disk
the rows are one CSV file: small beside the images, readable by people and by every tool.

After these columns a set may have further ones of texts, such as the session or the device of a video, and the split
that the dataset's authors made (`official`); a selection can name their values.

An *identity set*, for face recognition, has one more column, the group of each subject. All its images are bona fide,
and an identity may have images to train on and images to test with; `heldout` still means nobody trains on this
person.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from fedvisage.errors import UserError

BONA_FIDE = "bonafide"
SPLITS = ("train", "heldout", "test")
COLUMNS = ("item", "label", "species", "subject", "video", "frame", "split")
GROUP = "group"
OFFICIAL = "official"
"""A further column: the split that the dataset's authors made."""
PURPOSE, ENROL = "purpose", "enroll"
"""A further column, and its value for videos that enrol a person."""

_FURTHER = re.compile(r"[a-z][a-z0-9_]{0,31}")
_FURTHER_LIMIT = 32
_SPECIES = re.compile(r"[a-z0-9_-]{1,64}")
_TEXT_LIMIT = 255
_FRAME_LIMIT = 2**31 - 1

Texts = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Row:
    """What is known about one image; label 1 is bona fide, 0 is an attack. Only identity sets have groups."""

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
        """Return the values in the order of `COLUMNS`, then the group where there is one, then the further ones."""
        plain = (self.item, self.label, self.species, self.subject, self.video, self.frame, self.split)
        return (*plain, *self.further) if self.group is None else (*plain, self.group, *self.further)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a set as one array a column, aligned with its images."""

    label: npt.NDArray[np.uint8]
    species: Texts
    subject: Texts
    video: Texts
    frame: npt.NDArray[np.int32]
    split: Texts
    item: Texts
    group: Texts | None = None
    further: Mapping[str, Texts] = field(default_factory=dict)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.label)


class RowRules:
    """Checks rows one after another, remembering what earlier ones said about items, subjects and videos."""

    def __init__(self, place: str) -> None:
        """Start with no rows; errors will name the place."""
        self._place = place
        self._items: set[str] = set()
        self._split_of: dict[str, str] = {}
        self._group_of: dict[str, str | None] = {}
        self._first_of: dict[str, Row] = {}

    def check(self, row: Row) -> None:
        """Raise a UserError if the row breaks a rule by itself or contradicts an earlier row."""
        fault = _fault(row) or self._conflict(row)
        if fault:
            raise UserError(self._place, f"image {row.item[:120]!r}: {fault}")
        self._items.add(row.item)
        self._split_of[row.subject] = row.split
        self._first_of.setdefault(row.video, row)

    def _conflict(self, row: Row) -> str | None:
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
            return f"video {row.video!r} has bona fide images and attacks; a video is of one class, so name them apart"
        if first.subject != row.subject:
            return f"video {row.video!r} is of two subjects, {first.subject!r} and {row.subject!r}; name them apart"
        return None


def _fault(row: Row) -> str | None:
    """Return what is wrong with a row by itself, if anything."""
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
    """Tell whether a name stays inside the directory that it is joined to, on any system."""
    drive = len(text) > 1 and text[1] == ":"
    plain = not text.startswith("/") and "\\" not in text and not drive
    return plain and str(PurePosixPath(text)) == text and text != "." and ".." not in text.split("/")


def are_further(names: Sequence[str]) -> bool:
    """Tell whether these can be the names of further columns."""
    fit = all(_FURTHER.fullmatch(name) for name in names) and len(names) <= _FURTHER_LIMIT
    return fit and len({*names, *COLUMNS, GROUP}) == len(names) + len(COLUMNS) + 1


def as_columns(rows: Sequence[Row], further: Sequence[str] = ()) -> Rows:
    """Turn rows into typed, read-only columns."""
    columns = Rows(
        label=np.array([row.label for row in rows], dtype=np.uint8),
        species=np.array([row.species for row in rows], dtype=np.str_),
        subject=np.array([row.subject for row in rows], dtype=np.str_),
        video=np.array([row.video for row in rows], dtype=np.str_),
        frame=np.array([row.frame for row in rows], dtype=np.int32),
        split=np.array([row.split for row in rows], dtype=np.str_),
        item=np.array([row.item for row in rows], dtype=np.str_),
        group=np.array([row.group for row in rows], dtype=np.str_) if rows and rows[0].group is not None else None,
        further={
            name: np.array([row.further[place] for row in rows], dtype=np.str_) for place, name in enumerate(further)
        },
    )
    for column in [*vars(columns).values(), *columns.further.values()]:
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return columns


def read_rows(path: Path, count: int) -> Rows:
    """Read and check the rows of a set that should have `count` of them."""
    place = str(path)
    rules, rows = RowRules(place), []
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            header = next(reader, [])
            _, further = _columns(header, place)
            for row in _below(header, reader, place):
                rules.check(row)
                rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(place, f"not a readable table: {error}; make the set again") from None
    if len(rows) != count:
        raise UserError(place, f"has {len(rows)} rows where set.json promises {count}; make the set again")
    return as_columns(rows, further)


def rows_of(lines: Iterable[str], place: str) -> Iterator[Row]:
    """Yield the rows of a table; a table without a first line has none."""
    reader = csv.reader(lines, strict=True)
    if header := next(reader, None):
        yield from _below(header, reader, place)


def _below(header: list[str], lines: Iterable[list[str]], place: str) -> Iterator[Row]:
    """Yield the rows below the first line."""
    grouped, further = _columns(header, place)
    for number, values in enumerate(lines, 2):
        yield _parsed(values, place, number, grouped, len(further))


def _columns(header: list[str], place: str) -> tuple[bool, list[str]]:
    """Return whether a table has groups, and its further columns."""
    known, rest = tuple(header[: len(COLUMNS)]), header[len(COLUMNS) :]
    grouped = rest[:1] == [GROUP]
    further = rest[grouped:]
    if known != COLUMNS or not are_further(further):
        message = f"the first line must be {','.join(COLUMNS)}, in an identity set with ,{GROUP}, then further columns"
        raise UserError(place, f"{message}, in small letters and each once")
    return grouped, further


def _parsed(values: Sequence[str], place: str, line: int, grouped: bool, further: int) -> Row:
    known = len(COLUMNS) + grouped
    try:
        if len(values) != known + further:
            raise ValueError
        item, label, species, subject, video, frame, split = values[: len(COLUMNS)]
        group = values[known - 1] if grouped else None
        return Row(item, int(label), species, subject, video, int(frame), split, group, tuple(values[known:]))
    except ValueError:
        raise UserError(place, f"line {line} does not have the {known + further} values of a row") from None
