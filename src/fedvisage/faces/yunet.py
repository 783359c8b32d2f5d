"""Detect faces and their five points with YuNet, whose file `fedvisage model get yunet` stores in the cache.

Wu, Peng and Yu, "YuNet: A Tiny Millisecond-level Face Detector", Machine Intelligence Research 20(5), 2023, through
OpenCV's `FaceDetectorYN`. The network sees BGR pixels without normalisation. On faces on their side it places points as
if these were upright, with hardly less confidence, so it sees each face turned, too, and must prefer it as it is.
"""

from __future__ import annotations

from threading import Lock

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE, file_digest
from fedvisage.faces.detection import Face, Image, as_colour, resize, turned_views

NAME, VERSION = "yunet", "2023mar"
FILE = "face_detection_yunet_2023mar.onnx"
SHA256 = "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4"

LOWEST_CONFIDENCE = 0.7
"""Minimum confidence of a face."""

LONGEST_SIDE = 640
"""Pictures with a longer side are reduced to it first. The network was trained on faces of 10 to 300 pixels."""

OVERLAP, MOST_FACES = 0.3, 5000
"""Maximum overlap of boxes as a share of their union, and number of boxes before suppression."""

TURNS = (0, 72, 108, 144, 180, 216, 252, 288)
"""Degrees by which the network sees a face turned."""

CLOSE_SIDE = 192
"""Pixels of a turned picture of one face, at twice its box."""


class YuNet:
    """Finds faces in pictures."""

    def __init__(self) -> None:
        """Read the network from the cache."""
        path = CACHE / "models" / NAME / FILE
        remedy = "run `fedvisage model get yunet`, or with `--from FILE` if you have the file"
        if not path.is_file():
            raise UserError("--detector yunet", f"its file is not in the cache; {remedy}")
        if file_digest(path) != SHA256:
            raise UserError(str(path), f"differs from the published file; remove its folder, and {remedy}")
        size = (CLOSE_SIDE, CLOSE_SIDE)
        self._net = cv2.FaceDetectorYN.create(str(path), "", size, LOWEST_CONFIDENCE, OVERLAP, MOST_FACES)
        self._lock = Lock()  # the network keeps the size of its input

    def detect(self, image: Image) -> list[Face]:
        """Return the faces of a picture, RGB or grey (H×W×3 or H×W), highest confidence first."""
        image = np.ascontiguousarray(as_colour(image))
        height, width = image.shape[:2]
        scale = min(1.0, LONGEST_SIDE / max(height, width))
        seen = resize(image, max(1, round(width * scale)), max(1, round(height * scale))) if scale < 1 else image
        factor = np.array([width / seen.shape[1], height / seen.shape[0]])
        faces = []
        for row in self._run(seen):
            box, points = row[:4].reshape(2, 2), row[4:14].reshape(5, 2)
            face = Face((box * factor).ravel(), points * factor, float(row[14]))
            if face.plausible and self._is_upright(seen, row[:4]):
                faces.append(face)
        return sorted(faces, key=lambda face: -face.confidence)

    def largest(self, image: Image, sure: float) -> Face | None:
        """Return the largest face with at least this confidence, or None."""
        faces = [face for face in self.detect(image) if face.confidence >= sure]
        return max(faces, key=lambda face: face.area, default=None)

    def _is_upright(self, image: Image, box: NDArray[np.float64]) -> bool:
        """Return whether the confidence is highest for the face as it is, and not turned."""
        middle, half = box[:2] + box[2:] / 2, box[2:].max()  # of a square of twice the face's side
        views = turned_views(image, np.concatenate([middle - half, middle + half]), CLOSE_SIDE, TURNS)
        confidences = [max((float(row[14]) for row in self._run(view)), default=0.0) for view in views]
        return confidences[0] >= max(confidences[1:])

    def _run(self, image: Image) -> NDArray[np.float64]:
        """Return one row per face: box, five points and confidence."""
        with self._lock:
            self._net.setInputSize((image.shape[1], image.shape[0]))
            _, rows = self._net.detect(np.ascontiguousarray(image[..., ::-1]))
        return np.zeros((0, 15)) if rows is None else np.asarray(rows, np.float64)
