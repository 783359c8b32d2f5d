"""Datasets in RecordIO files, InsightFace's format of CASIA-WebFace, MS1MV2, Glint360K and others.

If the first record has two labels, it marks the end of the pictures and of the identities' own records; each identity's
record lists its pictures, and is compared with them. If the first record is a picture, all records are pictures. The
index maps keys to records; without one, records are numbered in order. The pictures are assumed to be aligned crops of
112 pixels.
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.datasets.people.layout import Layout, Photograph, PhotographList
from fedvisage.datasets.tree import fault_of_file
from fedvisage.faces.pictures import BYTES_LIMIT

# RecordIO, MXNet's format for pictures, read and written without MXNet.

MAGIC = 0xCED7230A
HEADER = struct.Struct("<IfQQ")

_FRAME = struct.Struct("<II")
_LENGTH = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LABELS = 2
"""Number of labels read per record: no known dataset uses more."""


class _TornRecord(Exception):
    """A fault of a record; the caller knows the record's position."""


@dataclass(frozen=True)
class Record:
    """The picture of a record at an offset in a file.

    A record is a magic number, a word with the length in its lower 29 bits and the kind of the part in its upper three,
    the content, and zeros up to a multiple of four bytes. A content that contains the magic number is split there: into
    a first part (1), further ones (2) and a last one (3), which are joined with the magic number. The content begins
    with a header: the number of labels after it, a label, and two numbers; labels after the header replace the one in
    it.

    Files may be hostile: every length is compared with the available bytes before anything is read.
    """

    path: Path
    offset: int

    def read(self) -> bytes:
        """Return the picture's bytes; raises BadFile if the file has changed."""
        with self.path.open("rb") as file:
            try:
                content, _ = _content(file.fileno(), self.offset, os.fstat(file.fileno()).st_size)
                flag, _ = _parse_heading(content, len(content))
            except _TornRecord as torn:
                raise BadFile(str(torn)) from None
        return content[HEADER.size + 4 * flag :]


@dataclass
class RecordTable:
    """The offset of each record in a file, its number of labels, and the first two, in a few bytes per record."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    flags: array[int] = field(default_factory=lambda: array("q"))
    labels: array[float] = field(default_factory=lambda: array("f"))
    seconds: array[float] = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        """Count the records."""
        return len(self.offsets)


def read_records(path: Path) -> RecordTable:
    """Read the heading of every record, without its picture; raise UserError for any other file."""
    records, offset = RecordTable(), 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            try:
                kind, length, end = _part(file.fileno(), offset, size)
                if kind == _WHOLE:
                    content = os.pread(file.fileno(), min(length, HEADER.size + 4 * _LABELS), offset + _FRAME.size)
                else:
                    content, end = _content(file.fileno(), offset, size)
                    length = len(content)
                flag, labels = _parse_heading(content, length)
            except _TornRecord as torn:
                raise UserError(str(path), f"record {len(records)}, at byte {offset}: {torn}") from None
            records.offsets.append(offset)
            records.flags.append(flag)
            records.labels.append(labels[0])
            records.seconds.append(labels[1] if len(labels) > 1 else 0.0)
            offset = end
    if not len(records):
        raise UserError(str(path), "is empty; give a RecordIO file")
    return records


def read_index(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the keys of an index and the offsets of their records."""
    try:
        with path.open(encoding="ascii") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(64), ""), 1):
                fields = line.split()
                if len(fields) != 2 or not all(cell.isdecimal() for cell in fields):
                    raise UserError(f"{path}, line {number}", "must be a key and a position, such as 12<TAB>34567")
                yield int(fields[0]), int(fields[1])
    except UnicodeDecodeError:
        raise UserError(str(path), "is not text; an index has a key and a position on every line") from None


def write_record(flag: int, labels: Sequence[float], number: int, content: bytes = b"") -> bytes:
    """Return a record: with `flag` 0 its label is in its header, else `flag` labels follow it."""
    head = HEADER.pack(flag, 0.0 if flag else labels[0], number, 0)
    content = head + (struct.pack(f"<{flag}f", *labels) if flag else b"") + content
    magic, parts = struct.pack("<I", MAGIC), list[bytes]()
    begin = 0
    for place in range(0, len(content) - 3, 4):
        if content[place : place + 4] == magic:
            parts.append(content[begin:place])
            begin = place + 4
    parts.append(content[begin:])
    kinds = [_WHOLE] if len(parts) == 1 else [_FIRST, *[_MIDDLE] * (len(parts) - 2), _LAST]
    return b"".join(
        _FRAME.pack(MAGIC, kind << 29 | len(part)) + part + bytes(-len(part) % 4)
        for kind, part in zip(kinds, parts, strict=True)
    )


def _part(handle: int, offset: int, size: int) -> tuple[int, int, int]:
    """Return the kind of a part, its length, and the offset of the next part."""
    if offset + _FRAME.size > size:
        raise _TornRecord("the file ends within it; copy the file again")
    magic, word = _FRAME.unpack(os.pread(handle, _FRAME.size, offset))
    if magic != MAGIC:
        raise _TornRecord("does not start with the magic number of RecordIO")
    kind, length = word >> 29, word & _LENGTH
    end = offset + _FRAME.size + length + -length % 4
    if end > size:
        raise _TornRecord(f"claims {length:,} bytes, more than the file contains; copy the file again")
    return kind, length, end


def _content(handle: int, offset: int, size: int) -> tuple[bytes, int]:
    """Return the joined parts of a record, and the offset of the next record; check all lengths before reading."""
    kind, length, end = _part(handle, offset, size)
    if kind not in (_WHOLE, _FIRST):
        raise _TornRecord("starts with a part of another record")
    parts, total = [(offset + _FRAME.size, length)], length
    while kind not in (_WHOLE, _LAST):
        begin = end + _FRAME.size
        kind, length, end = _part(handle, end, size)
        if kind not in (_MIDDLE, _LAST):
            raise _TornRecord("has no last part")
        parts.append((begin, length))
        total += 4 + length
        if total > BYTES_LIMIT:
            break
    if total > BYTES_LIMIT:
        raise _TornRecord(f"is larger than {BYTES_LIMIT >> 20} MiB")
    return struct.pack("<I", MAGIC).join(os.pread(handle, length, begin) for begin, length in parts), end


def _parse_heading(content: bytes, length: int) -> tuple[int, tuple[float, ...]]:
    """Return the number of labels after the header of a record, and at most two labels."""
    if length < HEADER.size:
        raise _TornRecord("is too short for a header")
    flag, label, _, _ = HEADER.unpack_from(content)
    if HEADER.size + 4 * flag > length:
        raise _TornRecord(f"claims {flag:,} labels, more than fit in it")
    labels = struct.unpack_from(f"<{min(flag, _LABELS)}f", content, HEADER.size) if flag else (label,)
    if not all(math.isfinite(value) for value in labels):
        raise _TornRecord("has a label that is NaN or infinite")
    return flag, labels


ENDING = ".rec"
PROPERTY = "property"

_MOST = 1 << 24
"""Labels from this value on are not exact in 32-bit floats."""


def scan(layout: Layout, source: Path) -> PhotographList:
    """List the pictures of a RecordIO file by their labels."""
    path = find_file(source, ENDING, layout)
    records = read_records(path)
    keys, notes = _keys(path, records)
    labels = np.frombuffer(records.labels, np.float32)
    pictures = _pictures(path, records, keys)
    unnamed = pictures[labels[pictures] < 0]
    pictures = pictures[labels[pictures] >= 0]
    if len(unnamed):
        notes += (f"{len(unnamed):,} images without a person (negative label) are left out",)
    if not len(pictures):
        raise UserError(str(path), "contains no image of any person")
    wrong = (labels[pictures] != np.floor(labels[pictures])) | (labels[pictures] >= _MOST)
    if wrong.any():
        label = labels[pictures][wrong][0]
        raise UserError(str(path), f"an image has the label {label:g}; labels of people must be whole numbers")
    # Sorting by label and key groups the pictures of a person, so that a range of `order` describes each.
    order = pictures[np.lexsort((keys[pictures], labels[pictures]))]
    people, first, counts = np.unique(labels[order].astype(np.int64), return_index=True, return_counts=True)
    dataset = printable(path.parent.resolve().name)[:100]
    names = [f"{dataset}/{person:07d}" for person in people.tolist()]
    ranges = dict(zip(names, zip(first.tolist(), counts.tolist(), strict=True), strict=True))
    appearing = np.argsort(keys[order[first]], kind="stable").tolist()

    def photographs(name: str) -> Sequence[Photograph]:
        begin, count = ranges[name]
        return _PersonPhotographs(path, records, keys, order[begin : begin + count], name)

    # The numbers of people, from the file `property`, and of pictures in a complete copy.
    count, beside = len(order) if records.flags[0] > 1 else 0, path.with_name(PROPERTY)
    expected = (0, count) if count else None
    if beside.is_file() and beside.stat().st_size <= 1000 and not fault_of_file(beside, PROPERTY, path.parent, ("",)):
        stated = beside.read_text(encoding="ascii", errors="replace").split(",")[0].strip()
        expected = (int(stated), count) if stated.isdecimal() else None
    in_order = {names[place]: ranges[names[place]][1] for place in appearing}
    return PhotographList(in_order, photographs, notes=notes, expected=expected, in_order=True)


class _PersonPhotographs(Sequence[Photograph]):
    """The photographs of a person, created on access: there may be millions."""

    def __init__(self, path: Path, records: RecordTable, keys: NDArray[np.int64], places: NDArray[np.int64], name: str):
        self._path, self._records, self._keys, self._places, self._name = path, records, keys, places, name

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]  # a slice is not asked for
        place = int(self._places[number])
        item = f"{self._name.rpartition('/')[2]}/{int(self._keys[place]):08d}"
        return Photograph(item, self._name, Record(self._path, self._records.offsets[place]))


def find_file(source: Path, ending: str, layout: Layout) -> Path:
    """Return the only file with this ending in a folder, or the source itself if it is such a file."""
    if source.suffix.lower() == ending and source.is_file():
        return source
    if not source.is_dir():
        raise UserError(str(source), f"directory not found; give the folder with the {ending} file")
    candidates = sorted(path for path in source.iterdir() if path.suffix.lower() == ending and path.name[0] != ".")
    if len(candidates) != 1:
        names = ", ".join(printable(path.name) for path in candidates)
        wanted = layout.expects.splitlines()[0].split("  ")[0]
        message = f"has {names}; give one of them" if names else f"has no {ending} file; searched for {wanted}"
        raise UserError(str(source), message)
    if fault := fault_of_file(candidates[0], candidates[0].name, source, (ending,)):
        raise UserError(str(candidates[0]), fault)
    return candidates[0]


def _keys(path: Path, records: RecordTable) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the key of each record, or -1 if the index does not list it."""
    index = path.with_suffix(".idx")
    if not index.exists():
        return np.arange(len(records), dtype=np.int64), (f"no {index.name}: records are numbered in order",)
    if fault := fault_of_file(index, index.name, path.parent, (".idx",)):
        raise UserError(str(index), fault)
    offsets = np.frombuffer(records.offsets, np.int64)
    keys = np.full(len(records), -1, np.int64)
    for key, offset in read_index(index):
        place = int(np.searchsorted(offsets, offset))
        if place == len(offsets) or offsets[place] != offset:
            raise UserError(str(index), f"key {key} is at byte {offset}, where no record starts; copy both files again")
        keys[place] = key
    if len(np.unique(keys[keys >= 0])) != (keys >= 0).sum():
        raise UserError(str(index), "has a key twice")
    missing = int((keys < 0).sum())
    return keys, (f"{missing:,} records that {index.name} does not list are left out",) if missing else ()


def _pictures(path: Path, records: RecordTable, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of the pictures' records; the pictures of each identity must have one label."""
    if records.flags[0] < 2:  # without records of identities
        return np.flatnonzero(keys >= 0)
    end, beyond = int(records.labels[0]), int(records.seconds[0])
    by_key = np.argsort(keys, kind="stable")
    sorted_keys = keys[by_key]
    pictures = by_key[(sorted_keys >= 1) & (sorted_keys < end)]
    identities = by_key[(sorted_keys >= end) & (sorted_keys < beyond)]
    if len(pictures) != end - 1 or len(identities) != beyond - end:
        fault = f"promises {end - 1:,} pictures of {beyond - end:,} people and has {len(pictures):,} of"
        raise UserError(str(path), f"{fault} {len(identities):,}; it is cut off or belongs to another index")
    labels = np.frombuffer(records.labels, np.float32)
    for place in identities.tolist():
        low, high = int(labels[place]), int(records.seconds[place])
        person_labels = labels[pictures[max(low - 1, 0) : max(high - 1, 0)]]
        if records.flags[place] < 2 or not 1 <= low <= high <= end or len(np.unique(person_labels)) > 1:
            fault = f"its record {int(keys[place])} says that the pictures {low} to {high - 1} are of one person"
            raise UserError(str(path), f"{fault}, but their labels do not; copy the file again")
    return pictures


def pack(root: Path) -> None:
    """Write a small copy: two people with three pictures."""
    from fedvisage.datasets.small_copies import encode_portrait  # needs the renderer

    pictures = [(0, encode_portrait(0, 0)), (0, encode_portrait(0, 1)), (1, encode_portrait(1, 0))]
    records = [write_record(2, (4, 6), 0)]
    records += [write_record(0, (label,), key, content) for key, (label, content) in enumerate(pictures, 1)]
    records += [write_record(2, (1, 3), 4), write_record(2, (3, 4), 5)]
    offsets = np.cumsum([0, *(len(record) for record in records[:-1])])
    root.mkdir(parents=True, exist_ok=True)
    (root / "train.rec").write_bytes(b"".join(records))
    (root / "train.idx").write_text("".join(f"{key}\t{offset}\n" for key, offset in enumerate(offsets)))
    (root / PROPERTY).write_text("2,112,112\n")


LAYOUT = Layout(
    kind="rec",
    title="a RecordIO file",
    page="https://github.com/deepinsight/insightface/tree/master/recognition/_datasets_",
    expects="train.rec  train.idx  property          aligned crops in one file",
    scan=scan,
    file=(ENDING, struct.pack("<I", MAGIC)[:1]),
    aligned=True,
    pack=pack,
)
