"""What is known about each image of a prepared set, and the rules that hold for it.

The same rules are applied when a set is written and when it is opened, because a set may come from anywhere.
On disk the rows are one CSV file: small beside the images, readable by people and by every tool.

An *identity set*, for face recognition, has one more column, the group of each subject. All its images are bona fide,
and an identity may have images to train on and images to test with; `heldout` still means nobody trains on this
person.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from fedvisage.errors import UserError

BONA_FIDE = "bonafide"
SPLITS = ("train", "heldout", "test")
COLUMNS = ("item", "label", "species", "subject", "video", "frame", "split")
GROUP = "group"

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

    def values(self) -> tuple[str | int, ...]:
        """Return the values in the order of `COLUMNS`, then the group where there is one."""
        plain = (self.item, self.label, self.species, self.subject, self.video, self.frame, self.split)
        return plain if self.group is None else (*plain, self.group)


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


def as_columns(rows: Sequence[Row]) -> Rows:
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
    )
    for column in vars(columns).values():
        if column is not None:
            column.flags.writeable = False
    return columns


def read_rows(path: Path, count: int) -> Rows:
    """Read and check the rows of a set that should have `count` of them."""
    place = str(path)
    rules, rows = RowRules(place), []
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            header = tuple(next(reader, ()))
            if header not in (COLUMNS, (*COLUMNS, GROUP)):
                raise UserError(place, f"the first line must be {','.join(COLUMNS)}, in an identity set with ,{GROUP}")
            for values in reader:
                row = _parsed(values, place, reader.line_num, len(header))
                rules.check(row)
                rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(place, f"not a readable table: {error}; make the set again") from None
    if len(rows) != count:
        raise UserError(place, f"has {len(rows)} rows where set.json promises {count}; make the set again")
    return as_columns(rows)


def _parsed(values: Sequence[str], place: str, line: int, count: int) -> Row:
    try:
        if len(values) != count:
            raise ValueError
        item, label, species, subject, video, frame, split, *group = values
        return Row(item, int(label), species, subject, video, int(frame), split, *group)
    except ValueError:
        raise UserError(place, f"line {line} does not have the {count} values of a row") from None
