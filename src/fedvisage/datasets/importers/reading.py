"""From one item to its pictures: which frames, cut out how, with which depth maps; in any process, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from fedvisage.data.crops import CropRecord
from fedvisage.datasets.importers.cropping import (
    LARGEST,
    MARGIN,
    Crop,
    Cropped,
    Image,
    crop_face,
    make_cropper,
    record_of,
)
from fedvisage.datasets.importers.depth import DepthMaker, Map, make_depth
from fedvisage.datasets.importers.films import Film, open_film, spaced
from fedvisage.datasets.importers.frames import FrameChoice
from fedvisage.datasets.importers.report import BadFile
from fedvisage.datasets.importers.videos import Frame
from fedvisage.datasets.scanners.boxes import Box, Form, in_pixels, read_boxes
from fedvisage.datasets.scanners.item import Item
from fedvisage.faces.detection import Face

Boxes = Literal["detect", "dataset"]
Finder = Callable[[int, Image], Cropped]
"""Cuts the face out of a frame, by its number and its pixels; raises BadFile where it has none."""

ALL = range(2**31)
"""Every frame."""


@dataclass(frozen=True)
class Reading:
    """How items become pictures."""

    frames: FrameChoice
    size: int
    crop: Crop = "face"
    depth: str = "auto"
    boxes: Boxes = "detect"
    form: Form = "sides"
    turned: bool = False

    @property
    def points(self) -> bool:
        """Tell whether every picture comes with five points."""
        return self.crop == "face" and self.boxes == "detect"

    @property
    def record(self) -> CropRecord:
        """What the set says of its crops; where the dataset's boxes lack one, the detector helps out."""
        if self.boxes == "dataset":
            return CropRecord(how="boxes", margin=MARGIN, alignment="box")
        return record_of(self.crop, search=LARGEST)

    @property
    def has_depth(self) -> bool:
        """Tell whether every picture comes with a depth map; an impossible choice raises UserError."""
        return _depth(self.maps, self.crop, self.size) is not None

    @property
    def maps(self) -> str:
        """Where depth maps come from; the dataset's boxes have no points to fit a face to."""
        return "none" if self.depth == "auto" and self.boxes == "dataset" else self.depth


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture of a set."""

    item: str
    frame: int
    cropped: Cropped
    depth: Map | None


@dataclass
class Outcome:
    """What became of an item: pictures, or the fault; and what there is to count."""

    digest: str = ""
    pictures: list[Picture] = field(default_factory=list)
    fault: str = ""
    lost: int = 0
    short: bool = False
    turned: bool = False
    without_box: int = 0


def read_item(item: Item, reading: Reading) -> Outcome:
    """Read an item, or say what is wrong with it."""
    outcome = Outcome()
    try:
        film = open_film(item)
        outcome.digest = film.digest()
        _read(item, film, reading, outcome)
    except BadFile as bad:
        outcome.fault, outcome.pictures = str(bad), []
    except OSError as error:
        outcome.fault, outcome.pictures = f"cannot be read: {error.strerror or error}", []
    return outcome


def _read(item: Item, film: Film, reading: Reading, outcome: Outcome) -> None:
    """Take an item's pictures; where all lack a face and the dataset has videos upside down, try it turned."""
    boxes = read_boxes(item.boxes, reading.form) if item.boxes and reading.boxes == "dataset" else {}
    sought: set[int] = set()
    finder = _finder(boxes, reading, sought)
    try:
        _take(item, film, reading, finder, outcome)
    except NoFace:
        if not (reading.turned and reading.crop == "face"):
            raise
        outcome.lost, outcome.turned = 0, True
        _take(item, film, reading, lambda number, image: finder(number, upside_down(image)), outcome)
    if reading.boxes == "dataset":
        numbers = [0 if item.kind == "image" else picture.frame for picture in outcome.pictures]
        outcome.without_box = sum(number in sought for number in numbers)


class NoFace(BadFile):
    """None of an item's frames can be used."""


def _take(item: Item, film: Film, reading: Reading, finder: Finder, outcome: Outcome) -> None:
    still, places = item.kind == "image", bool(reading.frames.places)
    if places and not still:
        frames: Iterable[Frame] = _among_found(film, reading.frames, finder, outcome)
    else:
        frames = film.frames({0}) if still else spaced(film, reading.frames.count or 1)
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
        outcome.pictures.append(Picture(name, item.frame if still else number, cropped, depth_map))
    outcome.lost = len(faults)
    if not outcome.pictures:
        raise NoFace(f"none of its frames can be used: {faults[0] if faults else 'it has none'}")


def _among_found(film: Film, choice: FrameChoice, finder: Finder, outcome: Outcome) -> Iterable[Frame]:
    """Return the frames at the chosen places among those with a face."""
    found = []
    for number, image in film.frames(ALL):
        try:
            finder(number, image)
        except BadFile:
            continue
        found.append(number)
    if not found:
        raise NoFace("no face found in any frame")
    places, outcome.short = choice.among(len(found))
    return film.frames(frozenset(found[place] for place in places))


def _finder(boxes: Mapping[int, Box], reading: Reading, sought: set[int]) -> Finder:
    """Return what cuts the face out of a frame: by the dataset's box where it has one, else as was asked for.

    The numbers of frames without a box that can be used are added to `sought`.
    """
    cropper = _cropper(reading.crop, reading.size)

    def find(number: int, image: Image) -> Cropped:
        box = in_pixels(boxes[number], reading.form, image.shape[1], image.shape[0]) if number in boxes else None
        if box is not None:
            return by_box(image, box, reading.size)
        sought.add(number)
        cropped = cropper(image)
        return cropped if reading.boxes == "detect" else _without_points(cropped)

    return find


def by_box(image: Image, box: Box, size: int) -> Cropped:
    """Cut out a face by a box that came with the data and lies inside the image; it has no points."""
    return _without_points(crop_face(image, [Face(box, np.zeros((5, 2)))], size))


def _without_points(cropped: Cropped) -> Cropped:
    return Cropped(cropped.image, cropped.upscaled, cropped.place)


def upside_down(image: Image) -> Image:
    """Turn an image by 180 degrees."""
    return np.ascontiguousarray(image[::-1, ::-1])


@cache
def _cropper(crop: Crop, size: int) -> Callable[[Image], Cropped]:
    """Make it once in each process: the weights of the detector take a second to load."""
    return make_cropper(crop, size)


@cache
def _depth(choice: str, crop: Crop, size: int) -> DepthMaker | None:
    return make_depth(choice, crop, size)
