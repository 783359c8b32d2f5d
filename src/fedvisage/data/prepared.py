"""Prepared sets: the on-disk format of an imported dataset, and its reader.

A set is a directory. `set.json` describes the set and lists the size and SHA-256 of every other file. `images.npy`
holds N×S×S×3 RGB bytes, `depth.npy` (optional) N×32×32 bytes, `points.npy` (optional) N×5×2 float32 pixels. `rows.csv`
has one line per image; in sets of format 2 it has further columns. Arrays are memory-mapped, so a set may be larger
than memory; docs/decisions/0002-prepared-sets.md gives the reasons.

A set may come from an untrusted source: its content is always checked and never executed. The same row rules apply when
a set is written and when it is opened. Rows are stored as CSV, which is small compared with the images and readable by
people and common tools.

Further columns hold texts, such as the session or device of a video, or the split made by the dataset's authors
(`official`). A selection can refer to their values.

An *identity set*, for face recognition, has one more column: the group of each subject. All its images are bona fide,
and an identity may have both training and test images; `heldout` still excludes a person from training.
"""

from __future__ import annotations

import csv
import hashlib
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedvisage.base.errors import UserError
from fedvisage.data.crops import CropRecord, from_source

PLAIN_FORMAT: Final = 1
FURTHER_FORMAT: Final = 2
"""The format of sets with further columns. Other sets keep format 1, which older versions can read."""
SIZE_LIMIT: Final = 4096
NAME_LIMIT: Final = 200
SOURCE_LIMIT: Final = 4096
DEPTH_SIZE: Final = 32
POINT_COUNT: Final = 5

SET: Final = "set.json"
IMAGES: Final = "images.npy"
DEPTH: Final = "depth.npy"
POINTS: Final = "points.npy"
ROWS: Final = "rows.csv"
REPORT: Final = "import-report.json"

_MANIFEST_LIMIT = 1 << 20
_BLOCK = 1 << 20

FileName = Literal["images.npy", "depth.npy", "points.npy", "rows.csv", "import-report.json"]


def _check_printable(text: str) -> str:
    """Reject texts with characters that a terminal would interpret."""
    if not text.isprintable():
        raise ValueError("contains unprintable characters")
    return text


Printable = Annotated[str, AfterValidator(_check_printable)]


class FileEntry(BaseModel):
    """Size and digest of a file of a set."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The content of `set.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    format: Literal[1, 2]
    name: Printable = Field(min_length=1, max_length=NAME_LIMIT)
    size: int = Field(ge=1, le=SIZE_LIMIT)
    count: int = Field(ge=1)
    source: Printable = Field(max_length=SOURCE_LIMIT)
    crop: CropRecord | None = None
    files: dict[FileName, FileEntry]

    @property
    def crops(self) -> CropRecord | None:
        """The crop record of the set, stored or inferred from its source line, or None."""
        return self.crop or from_source(self.source)

    @property
    def digest(self) -> str:
        """Digest of the set's content: SHA-256 over the digests of its files in order of their names."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read and check `set.json` in the directory of a set."""
    if not path.is_dir():
        raise UserError(str(path), "directory not found; give the directory of a prepared set")
    place = path / SET
    try:
        if regular_size(place) > _MANIFEST_LIMIT:
            raise UserError(str(place), f"is larger than {_MANIFEST_LIMIT} bytes: not a prepared set")
        return Manifest.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        advice = "make one with `fedvisage data synth` or `fedvisage data import`"
        raise UserError(str(place), f"not found, so this is not a prepared set; {advice}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"]) or "content"
        advice = f"this version reads prepared sets of the formats {PLAIN_FORMAT} and {FURTHER_FORMAT}"
        raise UserError(str(place), f"{location}: {first['msg']}; {advice}") from None


def check_file(path: Path, entry: FileEntry, verify: bool) -> None:
    """Raise a UserError if a file does not match its entry in `set.json`; compare digests only if `verify` is true."""
    try:
        size = regular_size(path)
        digest = file_digest(path) if verify and size == entry.bytes else entry.sha256
    except FileNotFoundError:
        raise UserError(str(path), f"is listed in {SET} but missing; copy or create the set again") from None
    if size != entry.bytes:
        message = f"has {size} bytes where {SET} promises {entry.bytes}; copy or create the set again"
        raise UserError(str(path), message)
    if digest != entry.sha256:
        raise UserError(str(path), f"its SHA-256 is not the one in {SET}: the file was changed or damaged")


def regular_size(path: Path) -> int:
    """Return the size of a regular file; raise a UserError for links and devices, which could lead out of the set."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(str(path), "is a link or not a regular file; a set may only contain its own files")
    return status.st_size


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, reading it in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


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

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.label)


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
    columns = ImageRows(
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


def read_rows(path: Path, count: int) -> ImageRows:
    """Read and check the rows of a set with `count` images."""
    place = str(path)
    rules, rows = RowRules(place), []
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.reader(lines, strict=True)
            header = next(reader, [])
            _, further = _columns(header, place)
            for row in _rows_below_header(header, reader, place):
                rules.check(row)
                rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(place, f"not a readable table: {error}; create the set again") from None
    if len(rows) != count:
        raise UserError(place, f"has {len(rows)} rows where set.json promises {count}; create the set again")
    return as_columns(rows, further)


def rows_of(lines: Iterable[str], place: str) -> Iterator[ImageRow]:
    """Yield the rows of a table; an empty table has none."""
    reader = csv.reader(lines, strict=True)
    if header := next(reader, None):
        yield from _rows_below_header(header, reader, place)


def _rows_below_header(header: list[str], lines: Iterable[list[str]], place: str) -> Iterator[ImageRow]:
    """Yield the rows after the header."""
    grouped, further = _columns(header, place)
    for number, values in enumerate(lines, 2):
        yield _parse_row(values, place, number, grouped, len(further))


def _columns(header: list[str], place: str) -> tuple[bool, list[str]]:
    """Return whether a table has groups, and its further columns."""
    fixed, rest = tuple(header[: len(COLUMNS)]), header[len(COLUMNS) :]
    grouped = rest[:1] == [GROUP]
    further = rest[grouped:]
    if fixed != COLUMNS or not are_further(further):
        message = f"the first line must be {','.join(COLUMNS)}, in an identity set with ,{GROUP}, then further columns"
        raise UserError(place, f"{message}, in lower case and without duplicates")
    return grouped, further


def _parse_row(values: Sequence[str], place: str, line: int, grouped: bool, further: int) -> ImageRow:
    known_count = len(COLUMNS) + grouped
    try:
        if len(values) != known_count + further:
            raise ValueError
        item, label, species, subject, video, frame, split = values[: len(COLUMNS)]
        group = values[known_count - 1] if grouped else None
        return ImageRow(
            item, int(label), species, subject, video, int(frame), split, group, tuple(values[known_count:])
        )
    except ValueError:
        raise UserError(place, f"line {line} does not have the {known_count + further} values of a row") from None


__all__ = ["ImageRows", "PreparedSet"]


@dataclass(frozen=True, eq=False, repr=False)
class PreparedSet:
    """An open prepared set; its arrays are read-only views of its files."""

    path: Path
    name: str
    size: int
    source: str
    digest: str
    rows: ImageRows
    images: npt.NDArray[np.uint8]
    depth: npt.NDArray[np.uint8] | None
    points: npt.NDArray[np.float32] | None
    crop: CropRecord | None = None
    """The crop record of the images, if known."""

    @staticmethod
    def open(path: Path, verify: bool = False) -> PreparedSet:
        """Open a set after checking its files; `verify` also compares their digests, which reads everything."""
        try:
            manifest = read_manifest(path)
            for missing in {IMAGES, ROWS} - manifest.files.keys():
                raise UserError(str(path / SET), f"is missing {missing}; create the set again")
            for name, entry in manifest.files.items():
                check_file(path / name, entry, verify)
            points = _map_optional(path, manifest, POINTS, (POINT_COUNT, 2), np.float32)
            if points is not None and not np.isfinite(points).all():
                raise UserError(str(path / POINTS), "contains points that are not finite; create the set again")
            count, size = manifest.count, manifest.size
            return PreparedSet(
                path=path,
                name=manifest.name,
                size=size,
                source=manifest.source,
                digest=manifest.digest,
                rows=read_rows(path / ROWS, count),
                images=_map_array(path / IMAGES, (count, size, size, 3), np.uint8),
                depth=_map_optional(path, manifest, DEPTH, (DEPTH_SIZE, DEPTH_SIZE), np.uint8),
                points=points,
                crop=manifest.crops,
            )
        except OSError as error:
            raise UserError(str(error.filename or path), f"cannot be read: {error.strerror or error}") from error

    def __repr__(self) -> str:
        """Return the directory, and the number and size of the images."""
        return f"PreparedSet({str(self.path)!r}, {len(self)} images of {self.size}×{self.size})"

    def __reduce__(self) -> tuple[Callable[[Path, str], PreparedSet], tuple[Path, str]]:
        """Pickle the set as path and digest: the receiving process maps the files instead of copying them."""
        return _reopen_set, (self.path, self.digest)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.rows)

    def select(self, split: str | None) -> npt.NDArray[np.int64]:
        """Return the indices of the images of a split, or of all images."""
        if split is None:
            return np.arange(len(self), dtype=np.int64)
        return np.flatnonzero(self.rows.split == split).astype(np.int64)


def _reopen_set(path: Path, digest: str) -> PreparedSet:
    reopened = PreparedSet.open(path)
    if reopened.digest != digest:
        raise UserError(str(path), "was replaced while it was in use; start again")
    return reopened


def _map_optional(path: Path, manifest: Manifest, name: FileName, shape: tuple[int, ...], dtype: Any) -> Any:
    """Map an optional array, or return None if the set does not have it."""
    return _map_array(path / name, (manifest.count, *shape), dtype) if name in manifest.files else None


def _map_array(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    """Map an array file after checking its shape and type."""
    try:
        # open_memmap, not np.load: it reads plain arrays only, never a pickle or an archive.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy evaluates the header as Python text, which can raise anything
        raise UserError(str(path), f"not an array that can be mapped: {error}"[:300]) from None
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        actual = f"{array.dtype} {'×'.join(map(str, array.shape))}"
        expected = f"{np.dtype(dtype)} {'×'.join(map(str, shape))}"
        raise UserError(str(path), f"contains {actual}, expected {expected}; create the set again")
    return array
