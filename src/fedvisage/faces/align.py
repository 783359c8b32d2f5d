"""Five-point alignment: the similarity transform that puts eyes, nose and mouth where recognition networks expect them.

The places are those of Deng et al., "ArcFace", CVPR 2019, §3.1 (its released code's five points in a crop of 112
pixels); other sizes scale them. The transform is the least-squares one of Umeyama, "Least-squares estimation of
transformation parameters between two point patterns", 1991, without reflections.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

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
