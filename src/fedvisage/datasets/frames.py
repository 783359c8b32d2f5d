"""Read the pictures of one item: choose frames, crop them and make depth maps, in any process and any order."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from fedvisage.base.errors import BadFile, UserError
from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import file_digest
from fedvisage.datasets.dataset import Kind
from fedvisage.datasets.depth_maps import DepthMaker, Map, make_depth
from fedvisage.datasets.hdf5 import ArrayFrames
from fedvisage.datasets.pad.item import Item
from fedvisage.datasets.pad.lists import Box, Form, in_pixels, read_boxes
from fedvisage.datasets.tree import fault_of_file
from fedvisage.faces.cropping import (
    LARGEST,
    MARGIN,
    Crop,
    CroppedPicture,
    Image,
    Padding,
    crop_at_margins,
    make_cropper,
    record_of,
)
from fedvisage.faces.detection import Face
from fedvisage.faces.pictures import (
    BYTES_LIMIT,
    ENDINGS,
    VIDEO_LIMIT,
    Frame,
    equidistant,
    open_picture,
    sample_video,
    video_frames,
    video_length,
)

# Films: the frames of an item, from a video, an image, a folder of images, or arrays in a file.


class FrameSource(Protocol):
    """Frames by number, from 0. Reading may raise BadFile."""

    def __len__(self) -> int: ...  # noqa: D105
    def frames(self, wanted: Container[int]) -> Iterator[Frame]: ...  # noqa: D102
    def name(self, number: int) -> str:  # noqa: D102
        ...

    def digest(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class VideoFrames:
    """The frames of a video file, in one pass."""

    item: Item

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
        """Return the digest of the file."""
        return _digest(self.item.path, VIDEO_LIMIT)


@dataclass(frozen=True)
class ImageFile:
    """An image file: one frame."""

    item: Item

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

    def digest(self) -> str:
        """Return the digest of the file."""
        return _digest(self.item.path, BYTES_LIMIT)


@dataclass(frozen=True)
class FrameFolder:
    """A folder of images that are the frames of a video, in order of their names; damaged images are skipped."""

    item: Item

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
        return " ".join(_digest(path, BYTES_LIMIT) for path in self._paths())


def _digest(path: Path, most: int) -> str:
    """Return the digest of a file; raise BadFile if it is too large to read completely."""
    if path.stat().st_size > most:
        raise BadFile(f"larger than {most >> 20} MiB")
    return file_digest(path)


_FRAME_SOURCES: dict[Kind, Callable[[Item], FrameSource]] = {
    "video": VideoFrames,
    "image": ImageFile,
    "frames": FrameFolder,
    "arrays": ArrayFrames,
}


def sample_frames(film: FrameSource, count: int) -> Iterator[Frame]:
    """Yield `count` frames from the middles of equal stretches of a film, or all frames of a shorter film."""
    if isinstance(film, VideoFrames):
        return sample_video(film.item.path, count)
    return film.frames(frozenset(equidistant(len(film), count)))


def open_frames(item: Item) -> FrameSource:
    """Return the frames of an item."""
    return _FRAME_SOURCES[item.kind](item)


# The choice of a video's frames.

_COUNT = re.compile(r"[0-9]{1,6}")
_POSITION = re.compile(r"(?:(?P<first>[0-9]{1,6})(?:\+n/(?P<after>[1-9][0-9]{0,5}))?|n/(?P<share>[1-9][0-9]{0,5}))")


@dataclass(frozen=True)
class FramePosition:
    """A position among n frames: an offset from the start, plus n over a divisor if there is one."""

    first: int
    divisor: int | None = None

    def of(self, count: int) -> int:
        """Return the position among `count` frames; it may be beyond the last."""
        return self.first + (count // self.divisor if self.divisor else 0)


@dataclass(frozen=True)
class FrameChoice:
    """Either a number of frames at equal distances, or positions among the frames with a face.

    ``10`` takes the middles of ten equal stretches of the video. ``6,6+n/2`` takes positions among the n frames with a
    detected face: index 6, the seventh, and index 6 + n/2. The last frame replaces positions beyond the end.
    """

    text: str
    count: int = 0
    places: tuple[FramePosition, ...] = ()

    def among(self, count: int) -> tuple[list[int], bool]:
        """Return the positions to take among `count` frames with a face, and whether the last replaced a later one."""
        positions = [position.of(count) for position in self.places]
        return sorted({min(position, count - 1) for position in positions}), any(
            position >= count for position in positions
        )


def read_choice(text: str | int) -> FrameChoice:
    """Read the frames option: a single number is a count; one position has a comma, as in ``6,``."""
    words = [word.strip() for word in str(text).split(",")]
    if len(words) == 1 and _COUNT.fullmatch(words[0]):
        if int(words[0]) < 1:
            raise UserError("frames", f"must be at least 1, got {text}")
        return FrameChoice(words[0], count=int(words[0]))
    places = [_POSITION.fullmatch(word) for word in words if word]
    if not places or None in places:
        message = (
            "must be a number of frames, such as 10, or positions among the frames with a face, such as 6,6+n/2 or 6,"
        )
        raise UserError("frames", f"{message}; got {str(text)!r}")
    positions = tuple(
        FramePosition(int(match["first"] or 0), int(match["after"] or match["share"] or 0) or None)
        for match in places
        if match
    )
    return FrameChoice(",".join(words), places=positions)


Boxes = Literal["detect", "dataset"]
Finder = Callable[[int, Image], CroppedPicture]
"""Cuts the face out of a frame, given its number and its pixels; raises BadFile for a frame without a face."""

ALL = range(2**31)
"""Every frame."""


@dataclass(frozen=True)
class ReadSettings:
    """The settings that turn items into pictures."""

    frames: FrameChoice
    size: int
    crop: Crop = "face"
    depth: str = "auto"
    boxes: Boxes = "detect"
    form: Form = "sides"
    turned: bool = False
    margins: tuple[float, ...] = (MARGIN,)
    padding: Padding = "none"

    @property
    def points(self) -> bool:
        """Return whether every picture has five points."""
        return self.crop == "face" and self.boxes == "detect"

    @property
    def record(self) -> CropRecord:
        """The crop record of the set; the detector finds faces that have no box in the dataset."""
        if self.boxes == "dataset":
            return CropRecord(how="boxes", margin=self.margins[0], padding=self.padding, alignment="box")
        return record_of(self.crop, search=LARGEST, margin=self.margins[0], padding=self.padding)

    @property
    def has_depth(self) -> bool:
        """Return whether every picture has a depth map; raise UserError for an impossible choice."""
        return _depth(self.maps, self.crop, self.size) is not None

    @property
    def maps(self) -> str:
        """Source of the depth maps; a dataset's boxes have no points for fitting a face."""
        return "none" if self.depth == "auto" and self.boxes == "dataset" else self.depth


@dataclass(frozen=True, eq=False)
class FramePicture:
    """One picture of a set."""

    item: str
    frame: int
    cropped: CroppedPicture
    depth: Map | None


@dataclass
class ItemResult:
    """The result of reading an item: its pictures or its fault, and counts for the report."""

    digest: str = ""
    pictures: list[FramePicture] = field(default_factory=list)
    fault: str = ""
    lost: int = 0
    short: bool = False
    turned: bool = False
    without_box: int = 0


def read_item(item: Item, reading: ReadSettings) -> ItemResult:
    """Read an item, or record its fault."""
    outcome = ItemResult()
    try:
        film = open_frames(item)
        outcome.digest = film.digest()
        _read_pictures(item, film, reading, outcome)
    except BadFile as bad:
        outcome.fault, outcome.pictures = str(bad), []
    except OSError as error:
        outcome.fault, outcome.pictures = f"cannot be read: {error.strerror or error}", []
    return outcome


def _read_pictures(item: Item, film: FrameSource, reading: ReadSettings, outcome: ItemResult) -> None:
    """Take an item's pictures; if no frame has a face and the dataset has videos upside down, try it rotated."""
    boxes = read_boxes(item.boxes, reading.form) if item.boxes and reading.boxes == "dataset" else {}
    sought: set[int] = set()
    finder = _finder(boxes, reading, sought)
    try:
        _take_frames(item, film, reading, finder, outcome)
    except NoFace:
        if not (reading.turned and reading.crop == "face"):
            raise
        outcome.lost, outcome.turned = 0, True
        _take_frames(item, film, reading, lambda number, image: finder(number, turn_around(image)), outcome)
    if reading.boxes == "dataset":
        numbers = [0 if item.kind == "image" else picture.frame for picture in outcome.pictures]
        outcome.without_box = sum(number in sought for number in numbers)


class NoFace(BadFile):
    """No frame of an item is usable."""


def _take_frames(item: Item, film: FrameSource, reading: ReadSettings, finder: Finder, outcome: ItemResult) -> None:
    still, places = item.kind == "image", bool(reading.frames.places)
    if places and not still:
        frames: Iterable[Frame] = _frames_with_face(film, reading.frames, finder, outcome)
    else:
        frames = film.frames({0}) if still else sample_frames(film, reading.frames.count or 1)
    depth, faults = _depth(reading.maps, reading.crop, reading.size), []
    for number, image in frames:
        name = film.name(number)
        try:
            cropped = finder(number, image)
            depth_map = depth(item.label, (name, item.depth_name or name), cropped) if depth else None
        except BadFile as bad:
            if still:
                raise NoFace(str(bad)) from None
            faults.append(str(bad))
            continue
        outcome.pictures.append(FramePicture(name, item.frame if still else number, cropped, depth_map))
    outcome.lost = len(faults)
    if not outcome.pictures:
        raise NoFace(f"no usable frames: {faults[0] if faults else 'it has no frames'}")


def _frames_with_face(film: FrameSource, choice: FrameChoice, finder: Finder, outcome: ItemResult) -> Iterable[Frame]:
    """Return the frames at the chosen positions among the frames with a face."""
    numbers = []
    for number, image in film.frames(ALL):
        try:
            finder(number, image)
        except BadFile:
            continue
        numbers.append(number)
    if not numbers:
        raise NoFace("no face found in any frame")
    places, outcome.short = choice.among(len(numbers))
    return film.frames(frozenset(numbers[place] for place in places))


def _finder(boxes: Mapping[int, Box], reading: ReadSettings, sought: set[int]) -> Finder:
    """Return the function that cuts the face out of a frame: by the dataset's box, or else by the chosen crop.

    It adds the numbers of frames without a usable box to `sought`.
    """
    cropper = _cropper(reading.crop, reading.size, reading.margins, reading.padding)

    def find(number: int, image: Image) -> CroppedPicture:
        box = in_pixels(boxes[number], reading.form, image.shape[1], image.shape[0]) if number in boxes else None
        if box is not None:
            return crop_by_box(image, box, reading.size, reading.margins, reading.padding)
        sought.add(number)
        cropped = cropper(image)
        return cropped if reading.boxes == "detect" else _without_points(cropped)

    return find


def crop_by_box(
    image: Image, box: Box, size: int, margins: Sequence[float] = (MARGIN,), padding: Padding = "none"
) -> CroppedPicture:
    """Cut out a face by a box from the dataset that lies inside the image; the crop has no points."""
    return _without_points(crop_at_margins(image, Face(box, np.zeros((5, 2))), size, margins, padding))


def _without_points(cropped: CroppedPicture) -> CroppedPicture:
    return replace(cropped, points=None)


def turn_around(image: Image) -> Image:
    """Turn an image by 180 degrees."""
    return np.ascontiguousarray(image[::-1, ::-1])


@cache
def _cropper(crop: Crop, size: int, margins: tuple[float, ...], padding: Padding) -> Callable[[Image], CroppedPicture]:
    """Make the cropper once per process: the weights of the detector take a second to load."""
    return make_cropper(crop, size, margin=margins[0], further=margins[1:], padding=padding)


@cache
def _depth(choice: str, crop: Crop, size: int) -> DepthMaker | None:
    return make_depth(choice, crop, size)
