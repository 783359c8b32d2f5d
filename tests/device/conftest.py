"""Photographs for tests of the device."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from fedvisage.render.identities import Identities, photograph_person, photographs_of


@pytest.fixture(scope="session")
def face() -> np.ndarray:
    return photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0]


@pytest.fixture(scope="session")
def photographs(face: np.ndarray) -> dict[str, np.ndarray]:
    """One face, two of them, one upside down, a blurred one, a small one, and a wall without any."""
    one = np.full((240, 480, 3), (120, 110, 90), np.uint8)
    small = one.copy()
    one[20:220, 20:220] = cv2.resize(face, (200, 200))
    two = one.copy()
    two[80:220, 300:440] = cv2.resize(face, (140, 140))
    small[90:150, 90:150] = cv2.resize(face, (60, 60), interpolation=cv2.INTER_AREA)
    return {
        "one": one,
        "two": two,
        "turned": np.ascontiguousarray(one[::-1, ::-1]),
        "blurred": cv2.GaussianBlur(one, (0, 0), 4),
        "small": small,
        "wall": np.full((240, 480, 3), (120, 110, 90), np.uint8),
    }
