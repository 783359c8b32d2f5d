"""Reads RecordIO files, in which MXNet and those who trained with it keep pictures; neither is needed here.

A record is a magic number, a word with the length in its lower 29 bits and how the record is cut in its upper three,
the content, and zeros up to a multiple of four bytes. A content in which the magic number stands is cut there:
a first part (1), further ones (2) and a last one (3), which belong together with the magic number between them. The
content begins with a header: how many labels follow it, a label, and two numbers; where labels follow, they stand for
that label.

Files may be hostile: every length is compared with what there is before anything is read.
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvisage.datasets.importers.pictures import BYTES_LIMIT
from fedvisage.datasets.importers.report import BadFile
from fedvisage.errors import UserError

MAGIC = 0xCED7230A
HEADER = struct.Struct("<IfQQ")

_FRAME = struct.Struct("<II")
_LENGTH = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_LABELS = 2
"""Labels of a record that are looked at: none of ours has more that count."""


class _Torn(Exception):
    """What is wrong with a record; whoever reads it knows where it is."""


@dataclass(frozen=True)
class Heading:
    """What a record says of itself: how many labels follow its header, the first two of them, and its content."""

    flag: int
    labels: tuple[float, ...]


@dataclass(frozen=True)
class Record:
    """The picture in a record that begins at a place in a file."""

    path: Path
    offset: int

    def read(self) -> bytes:
        """Return the picture's bytes; raises BadFile where the file is no longer what it was."""
        with self.path.open("rb") as file:
            try:
                content, _ = _content(file.fileno(), self.offset, os.fstat(file.fileno()).st_size)
                flag = _heading(content, len(content)).flag
            except _Torn as torn:
                raise BadFile(str(torn)) from None
        return content[HEADER.size + 4 * flag :]


@dataclass
class Records:
    """The records of a file: where each begins, how many labels it has, and the first two. A few bytes for each."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    flags: array[int] = field(default_factory=lambda: array("q"))
    labels: array[float] = field(default_factory=lambda: array("f"))
    seconds: array[float] = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        """Count the records."""
        return len(self.offsets)

    def add(self, offset: int, heading: Heading) -> None:
        """Note a record."""
        self.offsets.append(offset)
        self.flags.append(heading.flag)
        self.labels.append(heading.labels[0])
        self.seconds.append(heading.labels[1] if len(heading.labels) > 1 else 0.0)


def read_records(path: Path) -> Records:
    """Look at every record of a file, without its picture; what is no such file raises UserError."""
    records, offset = Records(), 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            try:
                heading, end = _look(file.fileno(), offset, size)
            except _Torn as torn:
                raise UserError(str(path), f"record {len(records)}, at byte {offset}: {torn}") from None
            records.add(offset, heading)
            offset = end
    if not len(records):
        raise UserError(str(path), "is empty; give a RecordIO file")
    return records


def read_index(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the keys of an index and the places of their records."""
    try:
        with path.open(encoding="ascii") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(64), ""), 1):
                fields = line.split()
                if len(fields) != 2 or not all(one.isdecimal() for one in fields):
                    raise UserError(f"{path}, line {number}", "must be a key and a place, such as 12<TAB>34567")
                yield int(fields[0]), int(fields[1])
    except UnicodeDecodeError:
        raise UserError(str(path), "is no text; an index has a key and a place in every line") from None


def write_record(flag: int, labels: Sequence[float], number: int, content: bytes = b"") -> bytes:
    """Return a record: with `flag` 0 its label stands in its header, else `flag` labels follow it."""
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
    """Return how a part is cut, how long it is, and where the next one begins."""
    if offset + _FRAME.size > size:
        raise _Torn("the file ends within it; copy the file again")
    magic, word = _FRAME.unpack(os.pread(handle, _FRAME.size, offset))
    if magic != MAGIC:
        raise _Torn("does not begin with the magic number of RecordIO")
    kind, length = word >> 29, word & _LENGTH
    end = offset + _FRAME.size + length + -length % 4
    if end > size:
        raise _Torn(f"claims {length:,} bytes, more than the file has; copy the file again")
    return kind, length, end


def _parts(handle: int, offset: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield where each part's content begins, its length, and where what follows begins."""
    kind, length, end = _part(handle, offset, size)
    if kind not in (_WHOLE, _FIRST):
        raise _Torn("begins with a part of another record")
    yield offset + _FRAME.size, length, end
    whole = length
    while kind not in (_WHOLE, _LAST):
        offset = end
        kind, length, end = _part(handle, offset, size)
        if kind not in (_MIDDLE, _LAST):
            raise _Torn("has no last part")
        if (whole := whole + 4 + length) > BYTES_LIMIT:
            raise _Torn(f"is larger than {BYTES_LIMIT >> 20} MiB")
        yield offset + _FRAME.size, length, end


def _content(handle: int, offset: int, size: int) -> tuple[bytes, int]:
    parts = list(_parts(handle, offset, size))
    if parts[0][1] > BYTES_LIMIT:
        raise _Torn(f"is larger than {BYTES_LIMIT >> 20} MiB")
    content = struct.pack("<I", MAGIC).join(os.pread(handle, length, begin) for begin, length, _ in parts)
    return content, parts[-1][2]


def _look(handle: int, offset: int, size: int) -> tuple[Heading, int]:
    """Return a record's heading and where the next record begins; a record in one part is not read whole."""
    kind, length, end = _part(handle, offset, size)
    if kind == _WHOLE:
        some = min(length, HEADER.size + 4 * _LABELS)
        return _heading(os.pread(handle, some, offset + _FRAME.size), length), end
    content, end = _content(handle, offset, size)
    return _heading(content, len(content)), end


def _heading(content: bytes, length: int) -> Heading:
    if length < HEADER.size:
        raise _Torn("is too short for a header")
    flag, label, _, _ = HEADER.unpack_from(content)
    if HEADER.size + 4 * flag > length:
        raise _Torn(f"claims {flag:,} labels, more than it has room for")
    labels = struct.unpack_from(f"<{min(flag, _LABELS)}f", content, HEADER.size) if flag else (label,)
    if not all(math.isfinite(one) for one in labels):
        raise _Torn("has a label that is no number")
    return Heading(flag, labels)
