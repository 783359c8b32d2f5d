"""Frames in HDF5 files: one array of all frames, or a group with an array a frame. Files may be hostile.

Colour is read where arrays of 8 bits and three channels, first or last, lie under a name such as ``Color_Data``,
``color`` or ``rgb``; where no name says so, in the only such arrays that there are. Nothing is read before its shape
was looked at, and frames one by one. What could lead out of the file is refused: links to other files, arrays that are
put together from other files, and arrays that are kept in them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from fedvisage.data.manifest import file_digest
from fedvisage.datasets.importers.pictures import PIXEL_LIMIT, SIDE_MINIMUM
from fedvisage.datasets.importers.report import BadFile, printable
from fedvisage.datasets.importers.videos import FRAME_LIMIT, Frame
from fedvisage.errors import UserError

if TYPE_CHECKING:
    from fedvisage.datasets.scanners.item import Item

FILE_LIMIT = 64 << 30
"""Bytes of a file, at most: a recording by several cameras has some gigabytes."""

DEPTH_LIMIT = 8
CHUNK_LIMIT = 512 << 20
"""Bytes that are unpacked together, at most."""

_COLOUR = re.compile(r"colou?r|rgb", re.IGNORECASE)
_INNER = ("array", "data")
"""What the array is called where each frame is a group of its own."""

_SHOWN = 6
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ArrayFilm:
    """The colour frames of an HDF5 file."""

    item: Item

    def __len__(self) -> int:
        """Count the frames."""
        with _colours(self.item) as arrays:
            return _length(arrays)

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the frames with these numbers."""
        with _colours(self.item) as arrays:
            for number in range(_length(arrays)):
                if number in wanted:
                    yield number, _upright(_read(arrays, number), bgr=self.item.bgr)

    def name(self, number: int) -> str:
        """Return what a frame is called in the set."""
        return f"{self.item.name}/{number:06d}"

    def digest(self) -> str:
        """Return the digest of a file that is not too large to be read to its end."""
        if self.item.path.stat().st_size > FILE_LIMIT:
            raise BadFile(f"larger than {FILE_LIMIT >> 30} GiB")
        return file_digest(self.item.path)


def open_arrays(path: Path, mode: Literal["r", "w"]) -> Any:
    """Open an HDF5 file; a UserError says what to install where it cannot be."""
    try:
        import h5py
    except ImportError:
        raise UserError("h5py", "is not installed; run: pip install 'fedvisage[datasets]'") from None
    return h5py.File(path, mode, locking=None if mode == "w" else False)  # not every disk has locks


@contextmanager
def _colours(item: Item) -> Iterator[list[Any]]:
    """Open a file and yield its colour arrays: one with all frames, or one a frame, in order."""
    try:
        with open_arrays(item.path, "r") as file:
            yield _chosen(dict(_walk(file)))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # whatever damaged bytes lead to
        raise BadFile(f"no HDF5 file that can be read: {printable(str(error))[:120]}") from None


def _walk(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a file by path; each group once, whatever links lead to it."""
    import h5py

    groups, entered, count = [("", file)], set(), 0
    while groups:
        path, group = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in entered or path.count("/") > DEPTH_LIMIT:
            continue
        entered.add(address)
        for name in group:
            count += 1
            if count > FRAME_LIMIT:
                raise BadFile(f"more than {FRAME_LIMIT} arrays and groups")
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise BadFile(f"{printable(name)} is a link to another file")
            if not isinstance(link, h5py.HardLink):
                continue
            entry = group[name]
            if isinstance(entry, h5py.Group):
                groups.append((f"{path}{name}/", entry))
            elif isinstance(entry, h5py.Dataset):
                yield f"{path}{name}", entry


def _chosen(found: dict[str, Any]) -> list[Any]:
    """Return the colour frames: those whose name says so before others, else the only ones."""
    films: dict[str, list[str]] = defaultdict(list)
    for path, array in found.items():
        stacked = array.ndim == 4 and _axis(array.shape[1:]) is not None
        if array.dtype == np.uint8 and (stacked or (array.ndim == 3 and _axis(array.shape) is not None)):
            films[path if stacked else _film_of(path)].append(path)
    named = sorted(film for film in films if _COLOUR.search(film))
    if not named and len(films) != 1:
        shown = [
            f"{printable(path)} {'×'.join(map(str, found[path].shape))} {found[path].dtype}" for path in sorted(found)
        ]
        has = f"it has {', '.join(shown[:_SHOWN])}{', …' if len(shown) > _SHOWN else ''}" if shown else "it is empty"
        raise BadFile(f"no array with a name of colour and frames of three 8-bit channels; {has}")
    film = named[0] if named else next(iter(films))
    arrays = [found[path] for path in sorted(films[film], key=_by_number)]
    for array in arrays:
        _check(array)
    return arrays


def _film_of(path: str) -> str:
    """Return what the frames of a film have in common: the group that holds them."""
    *groups, last = path.split("/")
    return "/".join(groups[:-1] if last in _INNER and groups else groups)


def _by_number(path: str) -> list[tuple[int, str]]:
    """Order names with numbers in them by these: Frame_2 before Frame_10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", path)]


def _axis(shape: tuple[int, ...]) -> int | None:
    """Return which axis of a frame is that of its channels: the last if it can be, else the first."""
    return 2 if shape[2] == 3 else 0 if shape[0] == 3 else None


def _check(array: Any) -> None:
    shape = array.shape if array.ndim == 3 else array.shape[1:]
    sides = shape[:2] if _axis(shape) == 2 else shape[1:]
    if array.is_virtual or array.external:
        raise BadFile(f"{printable(array.name)} is kept in other files")
    if min(sides) < SIDE_MINIMUM or sides[0] * sides[1] > PIXEL_LIMIT:
        raise BadFile(f"frames of {sides[1]}×{sides[0]} pixels are not accepted")
    if array.ndim == 4 and array.shape[0] > FRAME_LIMIT:
        raise BadFile(f"more than {FRAME_LIMIT} frames")
    if array.chunks and np.prod(array.chunks, dtype=np.float64) > CHUNK_LIMIT:
        raise BadFile(f"is packed in pieces of more than {CHUNK_LIMIT >> 20} MiB")


def _length(arrays: list[Any]) -> int:
    return int(arrays[0].shape[0]) if arrays[0].ndim == 4 else len(arrays)


def _read(arrays: list[Any], number: int) -> Pixels:
    return np.asarray(arrays[0][number] if arrays[0].ndim == 4 else arrays[number][()], np.uint8)


def _upright(frame: Pixels, *, bgr: bool) -> Pixels:
    """Return a frame as height × width × RGB."""
    image = frame if _axis(frame.shape) == 2 else np.moveaxis(frame, 0, 2)
    return np.ascontiguousarray(image[..., ::-1] if bgr else image)
