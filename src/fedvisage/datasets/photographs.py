"""From one photograph of a person to its aligned crop, in any process; or why it cannot be used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile, UserError
from fedvisage.datasets.people.layout import Shot
from fedvisage.faces.align import align
from fedvisage.faces.cropping import Crop, Image, make_cropper, make_detector, make_finder
from fedvisage.faces.detection import Face
from fedvisage.faces.pictures import read_picture

# The five points of a face whose box came with the photograph: found around it, or where they usually lie in it.

Points = NDArray[np.float64]
Detect = Callable[[Image], list[Face]]

LOOSE = 1.6
"""Side of the square in which the face is sought, over the longer side of its box."""

SEEN = 96
"""Pixels of the longer side of a box, at least, when it is sought: smaller pictures are enlarged for that."""

ALIKE = 0.3
"""A face that shares less than this of what it and the box cover together is another one."""

USUAL: Points = np.array([(0.31, 0.38), (0.69, 0.38), (0.50, 0.58), (0.34, 0.77), (0.66, 0.77)])
"""Where the five points lie in a box, as shares of its sides."""


def points_around(image: Image, box: NDArray[np.float64], detect: Detect) -> Points:
    """Return the five points of the face in a box (left, top, width, height)."""
    longer, middle = box[2:].max(), box[:2] + box[2:] / 2
    low = np.floor(middle - LOOSE * longer / 2).clip(0).astype(int)
    high = np.ceil(middle + LOOSE * longer / 2).clip(0).astype(int)
    loose = np.ascontiguousarray(image[low[1] : high[1], low[0] : high[0]])
    if not loose.size:
        return USUAL * box[2:] + box[:2]
    scale = max(1.0, SEEN / longer)
    if scale > 1:
        width, height = (max(1, round(side * scale)) for side in (loose.shape[1], loose.shape[0]))
        factor = np.array([width / loose.shape[1], height / loose.shape[0]])
        loose = np.asarray(cv2.resize(loose, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
    else:
        factor = np.ones(2)
    there = np.concatenate([(box[:2] - low) * factor, box[2:] * factor])
    found = [face for face in detect(loose) if _overlap(face.box, there) >= ALIKE]
    if not found:
        return USUAL * box[2:] + box[:2]
    best = max(found, key=lambda face: _overlap(face.box, there))
    return np.asarray(best.points / factor + low)


def _overlap(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the common area of two boxes as a share of what they cover together."""
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[:2] + one[2:], other[:2] + other[2:])
    common = float((high - low).clip(0).prod())
    return common / (float(one[2:].prod() + other[2:].prod()) - common)


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
