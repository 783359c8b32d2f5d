"""Five-point alignment: the similarity transform that puts eyes, nose and mouth where recognition networks expect them.

The places are those of Deng et al., "ArcFace", CVPR 2019, §3.1 (its released code's five points in a crop of 112
pixels); other sizes scale them. The transform is the least-squares one of Umeyama, "Least-squares estimation of
transformation parameters between two point patterns", 1991, without reflections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.detection import Face

# Faces in a picture that may stand on its head, and whether a picture has colours at all.
#
# On a face upside down the cascade puts points as if it were upright, and is less sure of it: of 120 such
# photographs it
# found no face on 101, and was surest of the others at 0.993; turned, it was surer on every one. Of upright ones it
# is
# mostly surer than 0.999, and was never surer turned. So a second look, at the picture turned by 180°, is taken only
# where no face is found or the largest is not sure.


SURE = 0.999
"""A face of which the detector is as sure as this is upright."""

SURE_TURNED = 0.99
"""A picture is turned for no face of which the detector is less sure."""

COLOURLESS, MOSTLY = 8, 0.99
"""In a grey picture the channels of this share of pixels are no further apart than this, noise of cameras included."""


@dataclass(frozen=True, eq=False)
class Found:
    """A picture with its faces upright, the largest face first, and whether it was turned by 180° for that."""

    picture: Image
    faces: list[Face]
    turned: bool = False

    @property
    def boxes(self) -> list[list[float]]:
        """The boxes (x, y, width, height) in the picture as it came, in the order of the faces."""
        height, width = self.picture.shape[:2]
        boxes = [face.box for face in self.faces]
        if self.turned:
            boxes = [np.array([width - x - w, height - y - h, w, h]) for x, y, w, h in boxes]
        return [[round(float(value), 1) for value in box] for box in boxes]


def find(picture: Image, detect: Callable[[Image], list[Face]]) -> Found:
    """Find the faces of a picture, and turn it where its largest face stands on its head."""
    upright = Found(picture, _by_size(detect(picture)))
    if upright.faces and upright.faces[0].confidence >= SURE:
        return upright
    turned = np.ascontiguousarray(picture[::-1, ::-1])
    other = replace(upright, picture=turned, faces=_by_size(detect(turned)), turned=True)
    least = max(SURE_TURNED, upright.faces[0].confidence if upright.faces else 0.0)
    return other if other.faces and other.faces[0].confidence > least else upright


def is_grey(picture: Image) -> bool:
    """Say whether a picture has no colours, as those of infrared cameras have none."""
    apart = picture.max(axis=2).astype(np.int16) - picture.min(axis=2)
    return bool((apart <= COLOURLESS).mean() >= MOSTLY)


def _by_size(faces: list[Face]) -> list[Face]:
    return sorted(faces, key=lambda face: -face.area)


Points = NDArray[np.float64]
Image = NDArray[np.uint8]

SIDE = 112
PLACES: Points = np.array(
    [(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)]
)
"""The eye on the image's left, the eye on its right, the tip of the nose, the left and right corner of the mouth."""


def similarity(points: Points, places: Points) -> Points:
    """Return the 2×3 matrix that brings points closest to their places by scaling, turning and moving."""
    mean, goal = points.mean(axis=0), places.mean(axis=0)
    centred, wanted = points - mean, places - goal
    left, strength, right = np.linalg.svd(wanted.T @ centred)
    signs = np.array([1.0, np.sign(np.linalg.det(left @ right))])
    turn = (left * signs) @ right
    scale = float((strength * signs).sum() / (centred**2).sum())
    return np.column_stack([scale * turn, goal - scale * turn @ mean])


def align(image: Image, points: Points, size: int) -> tuple[Image, Points]:
    """Return the aligned crop, and where the points are in it; what lies outside of the image is its mirrored edge."""
    places = PLACES * (size / SIDE)
    matrix = similarity(points, places)
    shrink = float(np.linalg.norm(matrix[0, :2]))
    if shrink < 0.5:  # bilinear sampling would skip pixels
        height, width = (max(2, round(side * 2 * shrink)) for side in image.shape[:2])
        points = points * (width / image.shape[1], height / image.shape[0])
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
        matrix = similarity(points, places)
    crop = cv2.warpAffine(image, matrix, (size, size), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(crop, np.uint8), points @ matrix[:, :2].T + matrix[:, 2]


def misalignment(points: Points, size: int) -> float:
    """Return how far points lie from their places, as a share of the side, for the worst of the five."""
    return float(np.linalg.norm(points - PLACES * (size / SIDE), axis=1).max() / size)
