"""A dataset in a RecordIO file, as InsightFace, FedFR and CVLface have CASIA-WebFace, MS1MV2, Glint360K and others.

Where the first record has two labels, it says where pictures end and the identities' own records begin; each of those
says which pictures are that identity's, and is compared with them. Where it is a picture, all records are pictures. The
index says which key a record has; without one, records are numbered in order. The pictures are aligned crops of 112
pixels, which is taken on trust.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers.report import printable
from fedvisage.datasets.people.album import Album, Shot
from fedvisage.datasets.people.layout import Layout
from fedvisage.datasets.people.records import MAGIC, Record, Records, read_index, read_records, write_record
from fedvisage.datasets.scanners.tree import unusable
from fedvisage.errors import UserError

ENDING = ".rec"
PROPERTY = "property"

_MOST = 1 << 24
"""Labels from here on are not exact in the file's numbers."""


def scan(layout: Layout, source: Path) -> Album:
    """List the pictures of a RecordIO file by their labels."""
    path = find_file(source, ENDING, layout)
    records = read_records(path)
    keys, notes = _keys(path, records)
    labels = np.frombuffer(records.labels, np.float32)
    pictures = _pictures(path, records, keys)
    unnamed = pictures[labels[pictures] < 0]
    pictures = pictures[labels[pictures] >= 0]
    if len(unnamed):
        notes += (f"{len(unnamed):,} pictures of nobody (their label is negative) are left out",)
    _check_labels(path, labels[pictures])
    order = pictures[np.lexsort((keys[pictures], labels[pictures]))]
    people, first, counts = np.unique(labels[order].astype(np.int64), return_index=True, return_counts=True)
    whose = printable(path.parent.resolve().name)[:100]
    names = [f"{whose}/{person:07d}" for person in people.tolist()]
    where = dict(zip(names, zip(first.tolist(), counts.tolist(), strict=True), strict=True))
    appearing = np.argsort(keys[order[first]], kind="stable").tolist()

    def shots(name: str) -> Sequence[Shot]:
        begin, count = where[name]
        return _Shots(path, records, keys, order[begin : begin + count], name)

    expected = _expected(path.with_name(PROPERTY), len(order) if _has_identities(records) else 0)
    in_order = {names[place]: where[names[place]][1] for place in appearing}
    return Album(in_order, shots, notes=notes, expected=expected, in_order=True)


class _Shots(Sequence[Shot]):
    """The photographs of a person, which are made when they are asked for: there may be millions."""

    def __init__(self, path: Path, records: Records, keys: NDArray[np.int64], places: NDArray[np.int64], name: str):
        self._path, self._records, self._keys, self._places, self._name = path, records, keys, places, name

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]  # a slice is not asked for
        place = int(self._places[number])
        item = f"{self._name.rpartition('/')[2]}/{int(self._keys[place]):08d}"
        return Shot(item, self._name, Record(self._path, self._records.offsets[place]))


def find_file(source: Path, ending: str, layout: Layout) -> Path:
    """Return the one file of an ending in a folder, or the source itself if it is such a file."""
    if source.suffix.lower() == ending and source.is_file():
        return source
    if not source.is_dir():
        raise UserError(str(source), f"no such directory; give the folder with the {ending} file")
    found = sorted(path for path in source.iterdir() if path.suffix.lower() == ending and path.name[0] != ".")
    if len(found) != 1:
        names = f"has {', '.join(printable(path.name) for path in found)}; give one of them" if found else (
            f"has no {ending} file; looked for {layout.expects.splitlines()[0].split('  ')[0]}")  # fmt: skip
        raise UserError(str(source), names)
    if fault := unusable(found[0], found[0].name, source, (ending,)):
        raise UserError(str(found[0]), fault)
    return found[0]


def _keys(path: Path, records: Records) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the key of each record; -1 where the index does not have it."""
    index = path.with_suffix(".idx")
    if not index.exists():
        return np.arange(len(records), dtype=np.int64), (f"no {index.name}: records are numbered in order",)
    if fault := unusable(index, index.name, path.parent, (".idx",)):
        raise UserError(str(index), fault)
    offsets = np.frombuffer(records.offsets, np.int64)
    keys = np.full(len(records), -1, np.int64)
    for key, offset in read_index(index):
        place = int(np.searchsorted(offsets, offset))
        if place == len(offsets) or offsets[place] != offset:
            raise UserError(str(index), f"key {key} is at byte {offset}, where no record begins; copy both files again")
        keys[place] = key
    if len(np.unique(keys[keys >= 0])) != (keys >= 0).sum():
        raise UserError(str(index), "has a key twice")
    missing = int((keys < 0).sum())
    return keys, (f"{missing:,} records that {index.name} does not name are left out",) if missing else ()


def _has_identities(records: Records) -> bool:
    return records.flags[0] > 0 and records.flags[0] != 1


def _pictures(path: Path, records: Records, keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the records that are pictures; identities must have the pictures that they claim."""
    if not _has_identities(records):
        return np.flatnonzero(keys >= 0)
    end, beyond = int(records.labels[0]), int(records.seconds[0])
    by_key = np.argsort(keys, kind="stable")
    known = keys[by_key]
    pictures = by_key[(known >= 1) & (known < end)]
    identities = by_key[(known >= end) & (known < beyond)]
    if len(pictures) != end - 1 or len(identities) != beyond - end:
        said = f"promises {end - 1:,} pictures of {beyond - end:,} people and has {len(pictures):,} of"
        raise UserError(str(path), f"{said} {len(identities):,}; it is cut off or belongs to another index")
    labels = np.frombuffer(records.labels, np.float32)
    for place in identities.tolist():
        low, high = int(labels[place]), int(records.seconds[place])
        own = labels[pictures[max(low - 1, 0) : max(high - 1, 0)]]
        if records.flags[place] < 2 or not 1 <= low <= high <= end or len(np.unique(own)) > 1:
            said = f"its record {int(keys[place])} says that the pictures {low} to {high - 1} are of one person"
            raise UserError(str(path), f"{said}, and their labels do not; copy the file again")
    return pictures


def _check_labels(path: Path, labels: NDArray[np.float32]) -> None:
    if not len(labels):
        raise UserError(str(path), "holds no picture of anybody")
    wrong = np.flatnonzero((labels != np.floor(labels)) | (labels >= _MOST))
    if len(wrong):
        raise UserError(str(path), f"a picture has the label {labels[wrong[0]]:g}; people have whole numbers")


def _expected(path: Path, pictures: int) -> tuple[int, int] | None:
    """Return how many people the file `property` promises, and how many pictures there are to be."""
    if not path.is_file() or path.stat().st_size > 1000 or unusable(path, path.name, path.parent, ("",)):
        return (0, pictures) if pictures else None
    first = path.read_text(encoding="ascii", errors="replace").split(",")[0].strip()
    return (int(first), pictures) if first.isdecimal() else None


def pack(root: Path) -> None:
    """Write a small copy: two people with three pictures."""
    from fedvisage.datasets.people.rendered import encoded  # which needs the renderer

    pictures = [(0, encoded(0, 0)), (0, encoded(0, 1)), (1, encoded(1, 0))]
    records = [write_record(2, (4, 6), 0)]
    records += [write_record(0, (label,), key, content) for key, (label, content) in enumerate(pictures, 1)]
    records += [write_record(2, (1, 3), 4), write_record(2, (3, 4), 5)]
    offsets = np.cumsum([0, *(len(one) for one in records[:-1])])
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
