"""What an item's frames are, whatever holds them: a video, an image, a folder of images, or arrays in a file."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedvisage.data.manifest import file_digest
from fedvisage.datasets.importers.arrays import ArrayFilm
from fedvisage.datasets.importers.pictures import BYTES_LIMIT, ENDINGS, open_picture
from fedvisage.datasets.importers.report import BadFile
from fedvisage.datasets.importers.videos import (
    VIDEO_LIMIT,
    Frame,
    equidistant,
    sample_video,
    video_frames,
    video_length,
)
from fedvisage.datasets.scanners.item import Item, Kind
from fedvisage.datasets.scanners.tree import unusable


class Film(Protocol):
    """Frames by number, from 0. Reading may raise BadFile."""

    def __len__(self) -> int: ...  # noqa: D105
    def frames(self, wanted: Container[int]) -> Iterator[Frame]: ...  # noqa: D102
    def name(self, number: int) -> str:  # noqa: D102
        ...

    def digest(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class VideoFilm:
    """The frames of a video file, in one pass."""

    item: Item

    def __len__(self) -> int:
        """Count the frames, which reads the whole file."""
        return video_length(self.item.path)

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the frames with these numbers."""
        return video_frames(self.item.path, wanted)

    def name(self, number: int) -> str:
        """Return what a frame is called in the set."""
        return f"{self.item.name}/{number:06d}"

    def digest(self) -> str:
        """Return the digest of the file."""
        return _digest(self.item.path, VIDEO_LIMIT)


@dataclass(frozen=True)
class Still:
    """An image file: one frame."""

    item: Item

    def __len__(self) -> int:
        """Return one."""
        return 1

    def frames(self, wanted: Container[int]) -> Iterator[Frame]:
        """Yield the image."""
        if 0 in wanted:
            yield 0, open_picture(self.item.path)

    def name(self, number: int) -> str:
        """Return the image's own name."""
        assert number == 0
        return self.item.name

    def digest(self) -> str:
        """Return the digest of the file."""
        return _digest(self.item.path, BYTES_LIMIT)


@dataclass(frozen=True)
class Folder:
    """A folder of images, in order of their names, that are the frames of a video; damaged ones are passed over."""

    item: Item

    def _paths(self) -> list[Path]:
        folder = self.item.path
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.name[0] != ".")
        return [path for path in paths if not unusable(path, path.name, folder, ENDINGS)]

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
            raise BadFile("no image of the folder can be read")

    def name(self, number: int) -> str:
        """Return the name of an image."""
        return f"{self.item.name}/{self._paths()[number].name}"

    def digest(self) -> str:
        """Return the digests of the images in one."""
        return " ".join(_digest(path, BYTES_LIMIT) for path in self._paths())


def _digest(path: Path, most: int) -> str:
    """Return the digest of a file that is not too large to be read to its end."""
    if path.stat().st_size > most:
        raise BadFile(f"larger than {most >> 20} MiB")
    return file_digest(path)


_FILMS: dict[Kind, Callable[[Item], Film]] = {"video": VideoFilm, "image": Still, "frames": Folder, "arrays": ArrayFilm}


def spaced(film: Film, count: int) -> Iterator[Frame]:
    """Yield so many frames from the middles of equal stretches of a film, or all if it has fewer."""
    if isinstance(film, VideoFilm):
        return sample_video(film.item.path, count)
    return film.frames(frozenset(equidistant(len(film), count)))


def open_film(item: Item) -> Film:
    """Return the frames of an item."""
    return _FILMS[item.kind](item)
