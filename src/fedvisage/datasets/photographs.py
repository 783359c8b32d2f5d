"""Read one photograph of a person and return its aligned crop or its fault, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile
from fedvisage.datasets.people.layout import Photograph
from fedvisage.faces.align import align
from fedvisage.faces.cropping import MTCNN, Crop, DetectorName, Image, make_cropper, make_detector, make_finder
from fedvisage.faces.detection import Face
from fedvisage.faces.pictures import read_picture

# The five points of a face in a known box: detected around the box, or at their usual positions in it.

Points = NDArray[np.float64]
Detect = Callable[[Image], list[Face]]

SEARCH_SIDE = 1.6
"""Side of the square searched for the face, relative to the longer side of its box."""

LEAST_SIDE = 96
"""Minimum length in pixels of a box's longer side for detection: smaller pictures are enlarged."""

LEAST_OVERLAP = 0.3
"""Minimum intersection over union with the box; a face below it is a different one."""

USUAL_POINTS: Points = np.array([(0.31, 0.38), (0.69, 0.38), (0.50, 0.58), (0.34, 0.77), (0.66, 0.77)])
"""Usual positions of the five points in a box, as shares of its sides."""


def points_around(image: Image, box: NDArray[np.float64], detect: Detect) -> Points:
    """Return the five points of the face in a box (left, top, width, height)."""
    # The detector sees a square around the box, clipped to the image.
    longer, middle = box[2:].max(), box[:2] + box[2:] / 2
    low = np.floor(middle - SEARCH_SIDE * longer / 2).clip(0).astype(int)
    high = np.ceil(middle + SEARCH_SIDE * longer / 2).clip(0).astype(int)
    loose = np.ascontiguousarray(image[low[1] : high[1], low[0] : high[0]])
    if not loose.size:
        return USUAL_POINTS * box[2:] + box[:2]
    # Small faces are enlarged, because the detector misses them.
    scale = max(1.0, LEAST_SIDE / longer)
    if scale > 1:
        width, height = (max(1, round(side * scale)) for side in (loose.shape[1], loose.shape[0]))
        factor = np.array([width / loose.shape[1], height / loose.shape[0]])
        loose = np.asarray(cv2.resize(loose, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
    else:
        factor = np.ones(2)
    sought = np.concatenate([(box[:2] - low) * factor, box[2:] * factor])
    matching = [face for face in detect(loose) if _overlap(face.box, sought) >= LEAST_OVERLAP]
    if not matching:
        return USUAL_POINTS * box[2:] + box[:2]
    best = max(matching, key=lambda face: _overlap(face.box, sought))
    return np.asarray(best.points / factor + low)


def _overlap(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the intersection over union of two boxes."""
    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[:2] + first[2:], second[:2] + second[2:])
    common = float((high - low).clip(0).prod())
    return common / (float(first[2:].prod() + second[2:].prod()) - common)


Aligned = tuple[Image, NDArray[np.float32] | None]
"""A crop, and its five points if faces are detected."""


@dataclass(frozen=True)
class Alignment:
    """The alignment of crops: by a detected face, or by the dataset's own points."""

    crop: Crop
    size: int
    boxes: Literal["detect", "dataset"] = "detect"
    detector: DetectorName = MTCNN


@dataclass(frozen=True, eq=False)
class PhotographResult:
    """The result for a photograph: its crop or its fault, and the digest of readable content."""

    digest: str = ""
    aligned: Aligned | None = None
    fault: str = ""


def read_photograph(photograph: Photograph, alignment: Alignment) -> PhotographResult:
    """Read a photograph and align its crop, or record its fault."""
    digest = ""
    try:
        content = photograph.content.read()
        digest = hashlib.sha256(content).hexdigest()
        image = read_picture(content)
        if alignment.boxes == "dataset":
            if photograph.points is None:
                raise BadFile("the dataset's lists have no points for it")
            crop, placed = _align_crop(image, photograph.points, alignment.size)
            if not np.isfinite(placed).all():
                raise BadFile("its points in the dataset's lists coincide")
            return PhotographResult(digest, (crop, placed))
        if photograph.box is not None and alignment.crop == "face":
            points = points_around(image, photograph.box, _detector(1, alignment.detector))
            return PhotographResult(digest, _align_crop(image, points, alignment.size))
        return PhotographResult(digest, _aligner(alignment.crop, alignment.size, alignment.detector)(image))
    except BadFile as bad:
        return PhotographResult(digest, fault=str(bad))
    except OSError as error:
        return PhotographResult(digest, fault=f"cannot be read: {error.strerror or error}")


_detector = cache(make_detector)


@cache
def _aligner(crop: Crop, size: int, detector: DetectorName) -> Callable[[Image], Aligned]:
    """Return the aligner, made once per process: the weights of the detector take a second to load."""
    if crop == "face":
        find = make_finder(detector=detector)
        return lambda image: _align_crop(image, find(image).points, size)
    cropper = make_cropper(crop, size)
    return lambda image: (cropper(image).image, None)


def _align_crop(image: Image, points: NDArray[np.float64], size: int) -> tuple[Image, NDArray[np.float32]]:
    crop, placed = align(image, points, size)
    return crop, placed.astype(np.float32)
