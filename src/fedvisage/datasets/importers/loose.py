"""The five points of a face whose box came with the photograph: found around it, or where they usually lie in it."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.detection import Face

Image = NDArray[np.uint8]
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
