"""Whether a face can be judged at all: how large it is, how sharp, how far turned, and whether it is alone.

What is measured is plain geometry of five points, and the pixels of the aligned face:

- size: the shorter side of the box, in pixels of the picture;
- sharpness: mean square of the Laplacian over the variance of brightness, in an aligned crop of 112 pixels; contrast
  and size of the picture cancel. A face that is blurred, or was enlarged, has little of it;
- turned: how far the tip of the nose lies from the middle between the eyes, along their line, in halves of their
  distance: 0 from the front, 1 where it lies below an eye;
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
"""Why a face is not judged, as people and programs read it."""


@dataclass(frozen=True)
class Settings:
    """How many threads compute, what a face must be like to be judged, and how many frames a running mean has."""

    threads: int = 1
    smallest: int = 64
    sharpness: float = 0.015
    turned: float = 0.7
    tilted: float = 35.0
    several: bool = False
    """Judge every face of a picture; otherwise a picture with more than one has no answer."""
    window: int = 10
    enlarge: bool = False
    """Judge faces, too, whose crops have to be enlarged to the model's size, as long as `smallest` holds."""

    def __post_init__(self) -> None:
        """Refuse what no picture could meet, and windows without frames."""
        if self.threads < 1 or self.window < 1 or self.smallest < 1:
            raise ValueError("threads, window and smallest must be at least 1")


@dataclass(frozen=True)
class Quality:
    """What was measured of a face, and what is wrong with it."""

    reasons: tuple[str, ...]
    size: float
    sharpness: float
    turned: float
    tilted: float

    @property
    def ok(self) -> bool:
        """Tell whether the face can be judged."""
        return not self.reasons


def measure(picture: Image, face: Face, alone: bool, settings: Settings, aligned: Image | None = None) -> Quality:
    """Measure a face of a picture; who has it aligned at 112 pixels already hands it in."""
    sharp = sharpness(align(picture, face.points, SIDE)[0] if aligned is None else aligned)
    size = float(face.box[2:].min())
    turned, tilted = pose(face)
    wrong = {
        SEVERAL: not (alone or settings.several),
        SMALL: size < settings.smallest,
        BLURRED: sharp < settings.sharpness,
        TURNED: turned > settings.turned,
        TILTED: tilted > settings.tilted,
    }
    return Quality(tuple(reason for reason, true in wrong.items() if true), size, sharp, turned, tilted)


def sharpness(aligned: Image) -> float:
    """Return how much of an aligned face's brightness changes from pixel to pixel."""
    grey = cv2.cvtColor(aligned, cv2.COLOR_RGB2GRAY).astype(np.float64)
    variance = float(grey.var())
    return 0.0 if variance < 1 else float(np.square(cv2.Laplacian(grey, cv2.CV_64F)).mean()) / variance


def pose(face: Face) -> tuple[float, float]:
    """Return how far a face is turned to a side, and by how many degrees it is tilted."""
    left, right, nose = face.points[:3]
    along = right - left
    length = float(np.linalg.norm(along))
    if length == 0:
        return 1.0, 0.0
    turned = abs(float((nose - (left + right) / 2) @ along)) / length / (length / 2)
    return turned, abs(float(np.degrees(np.arctan2(along[1], along[0]))))
