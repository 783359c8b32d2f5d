"""Check whether a face can be evaluated: size, sharpness, pose, and number of faces.

The measurements use the geometry of the five points and the pixels of the aligned face:

- size: the shorter side of the box, in pixels of the picture;
- sharpness: mean square of the Laplacian over the variance of brightness, in an aligned crop of 112 pixels; contrast
  and picture size cancel. Blurred and enlarged faces have a low sharpness;
- turned: distance of the tip of the nose from the midpoint between the eyes, along their line, in halves of their
  distance: 0 from the front, 1 if it lies below an eye;
- tilted: the angle of the line between the eyes, in degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.faces.align import SIDE, align
from fedvisage.faces.detection import Face

Image = NDArray[np.uint8]

NO_FACE, SEVERAL, SMALL, BLURRED, TURNED, TILTED = (
    *("no face found", "several faces", "the face is too small"),
    *("the face is blurred", "the face is turned away", "the face is tilted"),
)
"""Reasons why a face is not evaluated, for people and programs."""


@dataclass(frozen=True)
class Settings:
    """Number of threads, minimum quality of a face, and number of frames in a running mean."""

    threads: int = 1
    smallest: int = 64
    sharpness: float = 0.015
    turned: float = 0.7
    tilted: float = 35.0
    several: bool = False
    """Evaluate every face of a picture; otherwise a picture with more than one gets no decision."""
    window: int = 10
    enlarge: bool = False
    """Also evaluate faces whose crops must be enlarged to the model's size, as long as `smallest` holds."""
    strict: bool = False
    """Give no decision on a face with little context, instead of a note."""
    detector: str = ""
    """mtcnn or yunet; by default, that of the models' crops."""

    def __post_init__(self) -> None:
        """Refuse limits that no picture can meet, and windows without frames."""
        if self.threads < 1 or self.window < 1 or self.smallest < 1:
            raise ValueError("threads, window and smallest must be at least 1")


@dataclass(frozen=True)
class Quality:
    """The measurements of a face, and the reasons against evaluating it."""

    reasons: tuple[str, ...]
    size: float
    sharpness: float
    turned: float
    tilted: float

    @property
    def ok(self) -> bool:
        """True if the face can be evaluated."""
        return not self.reasons


def measure(picture: Image, face: Face, alone: bool, settings: Settings) -> Quality:
    """Measure a face of a picture; ``alone`` if the picture has no other."""
    sharp = sharpness(align(picture, face.points, SIDE)[0])
    size = float(face.box[2:].min())
    turned, tilted = pose(face)
    failed = {
        SEVERAL: not (alone or settings.several),
        SMALL: size < settings.smallest,
        BLURRED: sharp < settings.sharpness,
        TURNED: turned > settings.turned,
        TILTED: tilted > settings.tilted,
    }
    return Quality(tuple(reason for reason, failing in failed.items() if failing), size, sharp, turned, tilted)


def sharpness(aligned: Image) -> float:
    """Return the mean square of the Laplacian over the variance of an aligned face's brightness."""
    grey = cv2.cvtColor(aligned, cv2.COLOR_RGB2GRAY).astype(np.float64)
    variance = float(grey.var())
    return 0.0 if variance < 1 else float(np.square(cv2.Laplacian(grey, cv2.CV_64F)).mean()) / variance


def pose(face: Face) -> tuple[float, float]:
    """Return the turn of a face to one side, and its tilt in degrees."""
    left, right, nose = face.points[:3]
    along = right - left
    length = float(np.linalg.norm(along))
    if length == 0:
        return 1.0, 0.0
    turned = abs(float((nose - (left + right) / 2) @ along)) / length / (length / 2)
    return turned, abs(float(np.degrees(np.arctan2(along[1], along[0]))))
