"""Boxes as corners (left, top, right, bottom), N×4: what the stages of the cascade do with them."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float64]


def suppress(
    boxes: Boxes, scores: NDArray[np.float64], limit: float, share_of: Literal["union", "smaller"]
) -> NDArray[np.int64]:
    """Return the indices of the boxes that stay: the surest first, without those that overlap a surer one too much.

    How much they overlap is the common area as a share of both together, or of the smaller one.
    """
    areas = _areas(boxes)
    waiting = np.argsort(-scores, kind="stable")
    kept = []
    while waiting.size:
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        common = (high - low).clip(0).prod(axis=1)
        whole = areas[best] + areas[waiting] - common
        if share_of == "smaller":
            whole = np.minimum(areas[best], areas[waiting])
        waiting = waiting[common <= limit * whole]
    return np.array(kept, np.int64)


def moved(boxes: Boxes, offsets: NDArray[np.floating]) -> Boxes:
    """Move each corner by a share of the box's width and height."""
    return boxes + offsets * np.tile(sides(boxes), 2)


def squared(boxes: Boxes) -> Boxes:
    """Return squares around the same middles, as wide as the longer sides."""
    middle, half = (boxes[:, :2] + boxes[:, 2:]) / 2, sides(boxes).max(axis=1, keepdims=True) / 2
    return np.hstack([middle - half, middle + half])


def sides(boxes: Boxes) -> Boxes:
    """Return widths and heights, N×2."""
    return boxes[:, 2:] - boxes[:, :2]


def _areas(boxes: Boxes) -> NDArray[np.float64]:
    return np.asarray(sides(boxes).clip(0).prod(axis=1))
