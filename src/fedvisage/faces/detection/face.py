"""What a detector says of one face."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Face:
    """A detected face: box (x, y, width, height) and five points (eyes, nose, corners of the mouth), in pixels.

    Both are measured from the outer corner of the first pixel, so that the middle of that pixel is (0.5, 0.5).
    """

    box: NDArray[np.float64]
    points: NDArray[np.float64]
    confidence: float = 1.0

    @property
    def area(self) -> float:
        """The area of the box."""
        return float(self.box[2] * self.box[3])
