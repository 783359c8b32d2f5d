"""Find the upright faces of a picture, and align them by five points.

Alignment is the similarity transform that puts eyes, nose and mouth where recognition networks expect them. The places
are those of Deng et al., "ArcFace", CVPR 2019, §3.1 (its released code's five points in a crop of 112 pixels); other
sizes scale them. The transform is the least-squares one of Umeyama, "Least-squares estimation of transformation
parameters between two point patterns", 1991, without reflections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.detection import Face

# Detection in pictures that may be upside down, and detection of grey pictures.
#
# On an upside-down face the cascade places the points as if it were upright, with lower confidence. Of 120 such
# photographs it found no face on 101, and its highest confidence on the others was 0.993; after a turn by 180° its
# confidence rose on every one. On upright photographs its confidence is mostly above 0.999, and a turn never raised
# it. So `find` searches the turned picture only if no face was found or the largest one has a lower confidence.

SURE = 0.999
"""Minimum detector confidence at which a face counts as upright."""

SURE_TURNED = 0.99
"""Minimum detector confidence of a face in a turned picture."""

COLOURLESS, MOSTLY = 8, 0.99
"""In a grey picture, the channels of this share of pixels differ by at most this much, camera noise included."""


@dataclass(frozen=True, eq=False)
class DetectedFaces:
    """A picture with its faces upright, largest first; ``turned`` says whether it was turned by 180° for that."""

    picture: Image
    faces: list[Face]
    turned: bool = False

    @property
    def boxes(self) -> list[list[float]]:
        """The boxes (x, y, width, height) in the original picture, in the order of the faces."""
        height, width = self.picture.shape[:2]
        boxes = [face.box for face in self.faces]
        if self.turned:
            boxes = [np.array([width - x - w, height - y - h, w, h]) for x, y, w, h in boxes]
        return [[round(float(value), 1) for value in box] for box in boxes]


def detect_upright(
    picture: Image, detect: Callable[[Image], list[Face]], sure: float = SURE, sure_turned: float = SURE_TURNED
) -> DetectedFaces:
    """Find the faces of a picture, and turn the picture if its largest face is upside down."""

    def find(image: Image) -> list[Face]:
        return sorted(detect(image), key=lambda face: -face.area)

    upright = DetectedFaces(picture, find(picture))
    if upright.faces and upright.faces[0].confidence >= sure:
        return upright
    turned = np.ascontiguousarray(picture[::-1, ::-1])
    flipped = replace(upright, picture=turned, faces=find(turned), turned=True)
    least = max(sure_turned, upright.faces[0].confidence if upright.faces else 0.0)
    return flipped if flipped.faces and flipped.faces[0].confidence > least else upright


def is_grey(picture: Image) -> bool:
    """Return whether a picture has no colours, like those of infrared cameras."""
    difference = picture.max(axis=2).astype(np.int16) - picture.min(axis=2)
    return bool((difference <= COLOURLESS).mean() >= MOSTLY)


Points = NDArray[np.float64]
Image = NDArray[np.uint8]

SIDE = 112
PLACES: Points = np.array(
    [(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)]
)
"""The eye on the image's left, the eye on its right, the tip of the nose, the left and right corner of the mouth."""


def similarity(points: Points, places: Points) -> Points:
    """Return the 2×3 matrix that brings points closest to their places by scaling, rotation and translation."""
    mean, goal = points.mean(axis=0), places.mean(axis=0)
    centred, target = points - mean, places - goal
    left, strength, right = np.linalg.svd(target.T @ centred)
    signs = np.array([1.0, np.sign(np.linalg.det(left @ right))])
    turn = (left * signs) @ right
    scale = float((strength * signs).sum() / (centred**2).sum())
    return np.column_stack([scale * turn, goal - scale * turn @ mean])


def align(image: Image, points: Points, size: int) -> tuple[Image, Points]:
    """Return the aligned crop and the points in it; the area outside the image is filled with its mirrored edge."""
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
