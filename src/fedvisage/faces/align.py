"""Find the upright faces of a picture, and align them by five points.

Alignment is the similarity transform that puts eyes, nose and mouth where recognition networks expect them. The places
are those of Deng et al., "ArcFace", CVPR 2019, §3.1 (its released code's five points in a crop of 112 pixels); other
sizes scale them. The transform is the least-squares one of Umeyama, "Least-squares estimation of transformation
parameters between two point patterns", 1991, without reflections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.detection import Face

Points = NDArray[np.float64]
Image = NDArray[np.uint8]

# Detection in pictures that may be upside down, and detection of grey pictures.
#
# On an upside-down face the cascade places the points as if it were upright, with lower confidence. Of 120 such
# photographs it found no face on 101, and its highest confidence on the others was 0.993; after a turn by 180° its
# confidence rose on every one. On upright photographs its confidence is mostly above 0.999, and a turn never raised
# it. So the turned picture is searched only if no face was found or the largest one has a lower confidence.

SURE = 0.999
"""Minimum detector confidence at which a face counts as upright."""

SURE_TURNED = 0.99
"""Minimum detector confidence of a face in a turned picture."""

COLOURLESS, MOSTLY = 8, 0.99
"""In a grey picture, the channels of this share of pixels differ by at most this much, camera noise included."""


LONGEST, BORDER = 320, 0.25
"""A picture without a face is searched again at this size, with a border of this share of its longer side."""


@dataclass(frozen=True, eq=False)
class DetectedFaces:
    """A picture with its faces upright, largest first, and the quarter turns, counter-clockwise, that it took."""

    picture: Image
    faces: list[Face]
    turns: int = 0

    @property
    def boxes(self) -> list[list[float]]:
        """The boxes (x, y, width, height) in the original picture, in the order of the faces."""
        corners = [self.in_original(np.array([face.box[:2], face.box[:2] + face.box[2:]])) for face in self.faces]
        boxes = [[*places.min(axis=0), *(places.max(axis=0) - places.min(axis=0))] for places in corners]
        return [[round(float(value), 1) for value in box] for box in boxes]

    def in_original(self, points: Points) -> Points:
        """Return points of the turned picture in the original one."""
        height, width = self.picture.shape[:2]
        x, y = points[:, 0], points[:, 1]
        return np.stack([(x, y), (height - y, x), (width - x, height - y), (y, width - x)][self.turns], axis=1)


def detect_upright(
    picture: Image, detect: Callable[[Image], list[Face]], sure: float = SURE, sure_turned: float = SURE_TURNED
) -> DetectedFaces:
    """Find the faces of a picture, and turn the picture if its largest face is upside down or on its side."""

    def find(turns: int, search: Callable[[Image], list[Face]] = detect) -> DetectedFaces:
        turned = np.ascontiguousarray(np.rot90(picture, turns))
        return DetectedFaces(turned, sorted(search(turned), key=lambda face: -face.area), turns)

    upright = find(0)
    if upright.faces and upright.faces[0].confidence >= sure:
        return upright
    flipped = find(2)
    least = max(sure_turned, upright.faces[0].confidence if upright.faces else 0.0)
    if flipped.faces and flipped.faces[0].confidence > least:
        return flipped
    if upright.faces:
        return upright
    # The networks miss a face that fills the picture: they need some surroundings.
    turned = [find(turns, lambda image: detect_with_border(image, detect)) for turns in range(4)]
    best = max(turned, key=lambda result: result.faces[0].confidence if result.faces else 0.0)
    return best if best.faces and best.faces[0].confidence > sure_turned else upright


def detect_with_border(picture: Image, detect: Callable[[Image], list[Face]]) -> list[Face]:
    """Find the faces of a reduced picture with a border that repeats its edge; all five points lie in the picture."""
    height, width = picture.shape[:2]
    scale = min(1.0, LONGEST / max(height, width))
    sides = max(1, round(width * scale)), max(1, round(height * scale))
    small, border = cv2.resize(picture, sides, interpolation=cv2.INTER_AREA), round(BORDER * max(sides))
    padded = cv2.copyMakeBorder(small, border, border, border, border, cv2.BORDER_REPLICATE)
    faces = []
    for face in detect(np.asarray(padded, np.uint8)):
        points = (face.points - border) / scale
        if (points >= 0).all() and (points <= (width, height)).all():
            box = np.concatenate([face.box[:2] - border, face.box[2:]]) / scale
            faces.append(Face(box, points, face.confidence))
    return faces


def is_grey(picture: Image) -> bool:
    """Return whether a picture has no colours, like those of infrared cameras."""
    difference = picture.max(axis=2).astype(np.int16) - picture.min(axis=2)
    return bool((difference <= COLOURLESS).mean() >= MOSTLY)


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
