"""From one photograph of a person to its aligned crop, in any process; or why it cannot be used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers.cropping import Crop, Image, make_cropper, make_detector, make_finder
from fedvisage.datasets.importers.loose import Detect, points_around
from fedvisage.datasets.importers.pictures import read_picture
from fedvisage.datasets.importers.report import BadFile
from fedvisage.datasets.people.album import Shot
from fedvisage.errors import UserError
from fedvisage.faces.align import align

Aligned = tuple[Image, NDArray[np.float32] | None]
"""A crop, and the five points in it if faces are sought."""


@dataclass(frozen=True)
class Alignment:
    """How photographs become crops: whether the face is sought, or the points that came with them are taken."""

    crop: Crop
    size: int
    boxes: Literal["detect", "dataset"] = "detect"


@dataclass(frozen=True, eq=False)
class Developed:
    """What became of a photograph: its crop, or the fault; and the digest of its content if it could be read."""

    digest: str = ""
    aligned: Aligned | None = None
    fault: str = ""


def develop(shot: Shot, alignment: Alignment) -> Developed:
    """Read a photograph and make its crop, or say what is wrong with it."""
    digest = ""
    try:
        content = shot.content.read()
        digest = hashlib.sha256(content).hexdigest()
        image = read_picture(content)
        if alignment.boxes == "dataset":
            return Developed(digest, _by_points(image, shot, alignment.size))
        if shot.box is not None and alignment.crop == "face":
            return Developed(digest, _aligned(image, points_around(image, shot.box, _detector()), alignment.size))
        return Developed(digest, _aligner(alignment.crop, alignment.size)(image))
    except BadFile as bad:
        return Developed(digest, fault=str(bad))
    except OSError as error:
        return Developed(digest, fault=f"cannot be read: {error.strerror or error}")


def alignment_of(crop: Crop, size: int) -> Alignment:
    """Return how photographs are aligned whose face is sought, or that are aligned already."""
    if crop == "centre":
        raise UserError("crop", "recognition needs faces aligned: use face, or none if they are aligned already")
    return Alignment(crop, size)


@cache
def _detector() -> Detect:
    return make_detector()


@cache
def _aligner(crop: Crop, size: int) -> Callable[[Image], Aligned]:
    """Return what makes an aligned crop: once in each process, as the weights of the detector take a second to load."""
    if crop == "face":
        find = make_finder()
        return lambda image: _aligned(image, find(image).points, size)
    cropper = make_cropper(crop, size)
    return lambda image: (cropper(image).image, None)


def _by_points(image: Image, shot: Shot, size: int) -> Aligned:
    if shot.points is None:
        raise BadFile("the dataset's lists have no points of it")
    crop, points = _aligned(image, shot.points, size)
    if not np.isfinite(points).all():
        raise BadFile("its points in the dataset's lists are all one")
    return crop, points


def _aligned(image: Image, points: NDArray[np.float64], size: int) -> tuple[Image, NDArray[np.float32]]:
    crop, placed = align(image, points, size)
    return crop, placed.astype(np.float32)
