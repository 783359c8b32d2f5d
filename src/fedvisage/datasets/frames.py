"""Read the pictures of one item: choose frames, crop them and make depth maps, in any process and any order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal

import numpy as np

from fedvisage.base.errors import BadFile, UserError
from fedvisage.data.crops import CropRecord
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.depth_maps import Map, directory_of_maps, make_depth
from fedvisage.datasets.frame_sources import FrameSource, open_frames
from fedvisage.datasets.pad.lists import Box, Form, in_pixels, read_boxes
from fedvisage.faces.cropping import (
    LARGEST,
    LEAST_CONTEXT,
    MARGIN,
    MTCNN,
    NO_FACE,
    Crop,
    CroppedPicture,
    DetectorName,
    Image,
    Padding,
    crop_at_margins,
    make_cropper,
    make_upright_detector,
    record_of,
)
from fedvisage.faces.detection import Face
from fedvisage.faces.pictures import Frame, equidistant, sample_video

# The choice of a video's frames.

_COUNT = re.compile(r"[0-9]{1,6}")
_POSITION = re.compile(r"(?:(?P<first>[0-9]{1,6})(?:\+n/(?P<after>[1-9][0-9]{0,5}))?|n/(?P<share>[1-9][0-9]{0,5}))")


@dataclass(frozen=True)
class FrameChoice:
    """Either a number of frames at equal distances, or positions among the frames with a face.

    ``10`` takes the middles of ten equal stretches of the video. ``6,6+n/2`` takes positions among the n frames with a
    detected face: index 6, the seventh, and index 6 + n/2. The last frame replaces positions beyond the end.
    """

    text: str
    count: int = 0
    places: tuple[tuple[int, int | None], ...] = ()
    """Offsets from the start, to which n over a divisor is added if there is one."""

    def among(self, count: int) -> tuple[list[int], bool]:
        """Return the positions to take among `count` frames with a face, and whether the last replaced a later one."""
        positions = [first + (count // divisor if divisor else 0) for first, divisor in self.places]
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
        (int(match["first"] or 0), int(match["after"] or match["share"] or 0) or None) for match in places if match
    )
    return FrameChoice(",".join(words), places=positions)


Boxes = Literal["detect", "dataset"]
_depth = cache(make_depth)
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
    detector: DetectorName = MTCNN

    @property
    def points(self) -> bool:
        """Return whether every picture has five points."""
        return self.crop == "face" and self.boxes == "detect"

    @property
    def shows_context(self) -> bool:
        """Return whether crops are wide enough for the picture's context to matter, and end where the picture ends."""
        return self.crop == "face" and self.padding == "none" and max(self.margins) > LEAST_CONTEXT

    @property
    def record(self) -> CropRecord:
        """The crop record of the set; the detector finds faces that have no box in the dataset."""
        if self.boxes == "dataset":
            return CropRecord(how="boxes", margin=self.margins[0], padding=self.padding, alignment="box")
        return record_of(
            self.crop, search=LARGEST, margin=self.margins[0], padding=self.padding, detector=self.detector
        )

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
    unanswered: bool = False
    """No frame shows a usable face, although the item can be read."""
    lost: int = 0
    short: bool = False
    turned: int = 0
    """Degrees, counter-clockwise, by which the item was turned upright."""
    without_box: int = 0


def read_item(item: Item, reading: ReadSettings) -> ItemResult:
    """Read an item, or record its fault.

    A picture without a face is searched again with a border and turned. If no frame of a video has a face and the
    dataset has videos upside down, the video is tried rotated.
    """
    outcome = ItemResult()
    try:
        film = open_frames(item)
        outcome.digest = film.digest()
        boxes = read_boxes(item.boxes, reading.form) if item.boxes and reading.boxes == "dataset" else {}
        sought: set[int] = set()
        finder = _finder(boxes, reading, sought)
        try:
            _take_frames(item, film, reading, finder, outcome)
        except NoFace:
            is_still = item.kind == "image" and directory_of_maps(reading.depth) is None  # maps are not turned
            if reading.crop != "face" or not (reading.turned or is_still):
                raise

            def find_turned(number: int, image: Image) -> CroppedPicture:
                if not is_still:
                    outcome.turned = 180
                    return finder(number, turn_around(image))
                detected = _upright_detector(reading.detector)(image)
                if not detected.faces:
                    raise BadFile(NO_FACE)
                outcome.turned = 90 * detected.turns
                face = detected.faces[0]
                cropped = crop_at_margins(detected.picture, face, reading.size, reading.margins, reading.padding)
                return cropped if reading.boxes == "detect" else replace(cropped, points=None)

            outcome.lost = 0
            _take_frames(item, film, reading, find_turned, outcome)
        if reading.boxes == "dataset":
            numbers = [0 if item.kind == "image" else picture.frame for picture in outcome.pictures]
            outcome.without_box = sum(number in sought for number in numbers)
    except BadFile as bad:
        outcome.fault, outcome.pictures, outcome.unanswered = str(bad), [], isinstance(bad, NoFace)
    except OSError as error:
        outcome.fault, outcome.pictures = f"cannot be read: {error.strerror or error}", []
    return outcome


class NoFace(BadFile):
    """No frame of an item is usable."""


def _take_frames(item: Item, film: FrameSource, reading: ReadSettings, finder: Finder, outcome: ItemResult) -> None:
    still, count = item.kind == "image", reading.frames.count
    if still:
        frames: Iterable[Frame] = film.frames({0})
    elif reading.frames.places:
        # The positions are counted among the frames with a face.
        numbers = []
        for number, image in film.frames(ALL):
            with suppress(BadFile):
                finder(number, image)
                numbers.append(number)
        if not numbers:
            raise NoFace("no face found in any frame")
        places, outcome.short = reading.frames.among(len(numbers))
        frames = film.frames(frozenset(numbers[place] for place in places))
    elif item.kind == "video":
        frames = sample_video(item.path, count)  # decodes the file once instead of counting its frames first
    else:
        frames = film.frames(frozenset(equidistant(len(film), count)))
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


def _finder(boxes: Mapping[int, Box], reading: ReadSettings, sought: set[int]) -> Finder:
    """Return the function that cuts the face out of a frame: by the dataset's box, or else by the chosen crop.

    It adds the numbers of frames without a usable box to `sought`.
    """
    cropper = _cropper(reading.crop, reading.size, reading.margins, reading.padding, reading.detector)

    def find(number: int, image: Image) -> CroppedPicture:
        box = in_pixels(boxes[number], reading.form, image.shape[1], image.shape[0]) if number in boxes else None
        if box is None:
            sought.add(number)
            cropped = cropper(image)
        else:
            face = Face(box, np.zeros((5, 2)))
            cropped = crop_at_margins(image, face, reading.size, reading.margins, reading.padding)
        return cropped if reading.boxes == "detect" else replace(cropped, points=None)  # a box has no points

    return find


def turn_around(image: Image) -> Image:
    """Turn an image by 180 degrees."""
    return np.ascontiguousarray(image[::-1, ::-1])


_upright_detector = cache(partial(make_upright_detector, 1))
"""Makes the detector of turned pictures once per process."""


@cache
def _cropper(
    crop: Crop, size: int, margins: tuple[float, ...], padding: Padding, detector: DetectorName
) -> Callable[[Image], CroppedPicture]:
    """Make the cropper once per process: the weights of the detector take a second to load."""
    return make_cropper(crop, size, margin=margins[0], further=margins[1:], padding=padding, detector=detector)
