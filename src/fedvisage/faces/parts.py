"""Count the parts of a picture's file before it is decoded: small files of many parts take seconds, or hours."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice

from fedvisage.base.errors import BadFile

PARTS, BYTES_EACH = 1000, 1024
"""A file has at most ``PARTS`` parts, and one more per ``BYTES_EACH`` bytes; encoders write thousands into each."""

SCANS = 100
"""Maximum scans of a JPEG, and of the previews in it. Encoders write ten; each takes a pass over the whole picture."""

_PNG, _JPEG, _TIFF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8", (b"II", b"MM")
_SCAN = 0xDA
_WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA))
_STRIPS, _TILES, _BIG = 273, 324, 43


def check_parts(content: bytes) -> None:
    """Refuse a file with more chunks (PNG), segments or scans (JPEG), or strips (TIFF) than an encoder writes."""
    if content.startswith(_JPEG) and (scans := content.count(bytes([0xFF, _SCAN]))) > SCANS:
        raise BadFile(f"has {scans:,} scans, which no camera writes; save the picture again")
    most = PARTS + len(content) // BYTES_EACH
    if sum(1 for _ in islice(_parts(content), most + 1)) > most:
        raise BadFile(f"has more than {most:,} parts, which no camera writes; save the picture again")


def _parts(content: bytes) -> Iterable[object]:
    if content.startswith(_PNG):
        return _chunks(content)
    if content.startswith(_JPEG):
        return _segments(content)
    return range(_count_strips(content)) if content.startswith(_TIFF) else ()


def _chunks(content: bytes) -> Iterator[None]:
    """Yield for each chunk of a PNG."""
    place = len(_PNG)
    while place + 8 <= len(content):
        place += 12 + int.from_bytes(content[place : place + 4], "big")
        yield


def _segments(content: bytes) -> Iterator[None]:
    """Yield for each segment of a JPEG before its first scan, and for each byte that decoders skip between them."""
    place = len(_JPEG)
    while place + 4 <= len(content):
        marker = content[place + 1]
        if content[place] != 0xFF or marker == 0xFF:
            place += 1
        elif marker == _SCAN:
            return
        elif marker in _WITHOUT_LENGTH:
            place += 2
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        yield


def _count_strips(content: bytes) -> int:
    """Return the number of strips or tiles of the first picture of a TIFF, whose directory may be incomplete."""
    order = "<" if content.startswith(b"II") else ">"
    place_format, number, entry = ("8xQ", "Q", "HHQ8x") if _BIG in content[2:4] else ("4xI", "H", "HHI4x")
    try:
        (place,) = struct.unpack_from(order + place_format, content)
        (entries,) = struct.unpack_from(order + number, content, place)
        first = place + struct.calcsize(order + number)
        size = struct.calcsize(order + entry)
        rows = range(min(entries, (len(content) - first) // size))
        fields = [struct.unpack_from(order + entry, content, first + size * row) for row in rows]
    except (struct.error, OverflowError):
        return 0
    return sum(count for tag, _, count in fields if tag in (_STRIPS, _TILES))
