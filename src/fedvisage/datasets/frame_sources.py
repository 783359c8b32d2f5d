"""The frames of a video, an image, a folder of images, or an HDF5 file with colour arrays. Files may be hostile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.base.extensions import missing_extra
from fedvisage.base.files import file_digest
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.tree import fault_of_file
from fedvisage.faces.pictures import (
    BYTES_LIMIT,
    ENDINGS,
    FRAME_LIMIT,
    PIXEL_LIMIT,
    SIDE_MINIMUM,
    VIDEO_LIMIT,
    Frame,
    open_picture,
    video_frames,
    video_length,
)

FILE_LIMIT = 64 << 30
"""Largest file in bytes: a recording by several cameras has some gigabytes."""

DEPTH_LIMIT = 8
CHUNK_LIMIT = 512 << 20
"""Largest chunk in bytes that is unpacked at once."""

_COLOUR = re.compile(r"colou?r|rgb", re.IGNORECASE)
_INNER = ("array", "data")
"""Name of the array where each frame is a group."""

_SHOWN = 6


@dataclass(frozen=True)
class FrameSource:
    """The frames of an item by number, from 0, in one pass: those of a video file. Reading may raise BadFile."""

    item: Item
    limit: ClassVar[int] = VIDEO_LIMIT
    """Largest file in bytes that is read."""

    def __len__(self) -> int:
        """Count the frames, which reads the whole file."""
        return video_length(self.item.path)

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the frames with these numbers."""
        return video_frames(self.item.path, wanted)

    def name(self, number: int) -> str:
        """Return the name of a frame in the set."""
        return f"{self.item.name}/{number:06d}"

    def digest(self) -> str:
        """Return the digest of the item's content."""
        return self._digest(self.item.path)

    def _digest(self, path: Path) -> str:
        if path.stat().st_size > self.limit:
            size = f"{self.limit >> 30} GiB" if self.limit >= 1 << 30 else f"{self.limit >> 20} MiB"
            raise BadFile(f"larger than {size}")
        try:
            return file_digest(path)
        except UserError as error:
            raise BadFile(error.message) from None


class ImageFile(FrameSource):
    """An image file: one frame."""

    limit = BYTES_LIMIT

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the image."""
        if 0 in wanted:
            yield 0, open_picture(self.item.path)

    def name(self, number: int) -> str:
        """Return the image's own name."""
        assert number == 0
        return self.item.name


class FrameFolder(FrameSource):
    """A folder of images that are the frames of a video, in order of their names; damaged images are skipped."""

    limit = BYTES_LIMIT

    def _paths(self) -> list[Path]:
        folder = self.item.path
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.name[0] != ".")
        return [path for path in paths if not fault_of_file(path, path.name, folder, ENDINGS)]

    def __len__(self) -> int:
        """Count the images."""
        return len(self._paths())

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the images with these numbers."""
        read = False
        for number, path in enumerate(self._paths()):
            if number in wanted:
                try:
                    image = open_picture(path)
                except BadFile:
                    continue
                read = True
                yield number, image
        if not read:
            raise BadFile("no readable image in the folder")

    def name(self, number: int) -> str:
        """Return the name of an image."""
        return f"{self.item.name}/{self._paths()[number].name}"

    def digest(self) -> str:
        """Return the digests of all images as one string."""
        return " ".join(map(self._digest, self._paths()))


class ArrayFrames(FrameSource):
    """The colour frames of an HDF5 file: one array of all frames, or a group with one array per frame.

    Colour frames are 8-bit arrays with three channels, first or last, under a name such as ``Color_Data``, ``color`` or
    ``rgb``; without such a name, the only arrays of this form. Shapes are checked before any pixel is read, and frames
    are read one at a time. Links to other files, virtual arrays and external arrays are refused, because they lead out
    of the file.
    """

    limit = FILE_LIMIT

    def __len__(self) -> int:
        """Count the frames."""
        with _open_colours(self.item) as arrays:
            return _count_frames(arrays)

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the frames with these numbers."""
        with _open_colours(self.item) as arrays:
            for number in range(_count_frames(arrays)):
                if number in wanted:
                    frame = np.asarray(arrays[0][number] if arrays[0].ndim == 4 else arrays[number][()], np.uint8)
                    image = frame if _channel_axis(frame.shape) == 2 else np.moveaxis(frame, 0, 2)
                    yield number, np.ascontiguousarray(image[..., ::-1] if self.item.bgr else image)


def open_frames(item: Item) -> FrameSource:
    """Return the frames of an item."""
    sources = {"video": FrameSource, "image": ImageFile, "frames": FrameFolder, "arrays": ArrayFrames}
    return sources[item.kind](item)


def open_arrays(path: Path, mode: Literal["r", "w"]) -> Any:
    """Open an HDF5 file; without h5py, raise a UserError that names the package to install."""
    try:
        import h5py
    except ImportError:
        raise missing_extra("datasets", "h5py") from None
    return h5py.File(path, mode, locking=None if mode == "w" else False)  # some disks have no locks


@contextmanager
def _open_colours(item: Item) -> Iterator[list[Any]]:
    """Open a file and yield its colour arrays in order: one with all frames, or one per frame."""
    try:
        with open_arrays(item.path, "r") as file:
            yield _choose_arrays(dict(_walk_arrays(file)))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:  # damaged bytes can raise any of these
        raise BadFile(f"not a readable HDF5 file: {printable(str(error))[:120]}") from None


def _walk_arrays(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a file by path; visit each group once, even if several links lead to it."""
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


def _choose_arrays(arrays_by_path: dict[str, Any]) -> list[Any]:
    """Return the colour frames: arrays with a colour name first, else the only candidates."""
    films: dict[str, list[str]] = defaultdict(list)
    for path, array in arrays_by_path.items():
        stacked = array.ndim == 4 and _channel_axis(array.shape[1:]) is not None
        # A film is one array of frames, or a group of arrays with one frame each.
        if array.dtype == np.uint8 and (stacked or (array.ndim == 3 and _channel_axis(array.shape) is not None)):
            films[path if stacked else _group_of(path)].append(path)
    named = sorted(film for film in films if _COLOUR.search(film))
    if not named and len(films) != 1:
        shown = [
            f"{printable(path)} {'×'.join(map(str, arrays_by_path[path].shape))} {arrays_by_path[path].dtype}"
            for path in sorted(arrays_by_path)
        ]
        contents = (
            f"it has {', '.join(shown[:_SHOWN])}{', …' if len(shown) > _SHOWN else ''}" if shown else "it is empty"
        )
        raise BadFile(f"no colour array with frames of three 8-bit channels; {contents}")
    film = named[0] if named else next(iter(films))
    arrays = [arrays_by_path[path] for path in sorted(films[film], key=_by_number)]
    for array in arrays:
        shape = array.shape if array.ndim == 3 else array.shape[1:]
        sides = shape[:2] if _channel_axis(shape) == 2 else shape[1:]
        if array.is_virtual or array.external:
            raise BadFile(f"{printable(array.name)} is stored in other files")
        if min(sides) < SIDE_MINIMUM or sides[0] * sides[1] > PIXEL_LIMIT:
            raise BadFile(f"frames of {sides[1]}×{sides[0]} pixels are not supported")
        if array.ndim == 4 and array.shape[0] > FRAME_LIMIT:
            raise BadFile(f"more than {FRAME_LIMIT} frames")
        if array.chunks and np.prod(array.chunks, dtype=np.float64) > CHUNK_LIMIT:
            raise BadFile(f"is stored in chunks of more than {CHUNK_LIMIT >> 20} MiB")
    return arrays


def _group_of(path: str) -> str:
    """Return the path of the group that holds all frames of a film."""
    *groups, last = path.split("/")
    return "/".join(groups[:-1] if last in _INNER and groups else groups)


def _by_number(path: str) -> list[tuple[int, str]]:
    """Split a name into numbers and text, so that Frame_2 sorts before Frame_10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", path)]


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of a frame's channels: the last if it has three entries, else the first."""
    return 2 if shape[2] == 3 else 0 if shape[0] == 3 else None


def _count_frames(arrays: list[Any]) -> int:
    return int(arrays[0].shape[0]) if arrays[0].ndim == 4 else len(arrays)
