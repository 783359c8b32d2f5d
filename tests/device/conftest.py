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
    """Pictures of one face, two faces, a face upside down, a blurred face, a small face, and a wall."""
    single = np.full((240, 480, 3), (120, 110, 90), np.uint8)
    small = single.copy()
    single[20:220, 20:220] = cv2.resize(face, (200, 200))
    two = single.copy()
    two[80:220, 300:440] = cv2.resize(face, (140, 140))
    small[90:150, 90:150] = cv2.resize(face, (60, 60), interpolation=cv2.INTER_AREA)
    return {
        "one": single,
        "two": two,
        "turned": np.ascontiguousarray(single[::-1, ::-1]),
        "blurred": cv2.GaussianBlur(single, (0, 0), 4),
        "small": small,
        "wall": np.full((240, 480, 3), (120, 110, 90), np.uint8),
    }


@pytest.fixture(scope="session")
def scene(face: np.ndarray) -> np.ndarray:
    """Return a face of 100 pixels in a room with grain."""
    room = np.random.default_rng(0).integers(90, 130, (480, 640, 3)).astype(np.uint8)
    room[150:290, 260:400] = cv2.resize(face, (140, 140), interpolation=cv2.INTER_CUBIC)
    return room
