"""Photographs and a gallery for tests of the device."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.device.gallery.files import KEY
from tests.device.photographs import draw_face, draw_photographs

from fedvisage.device.gallery.search import Gallery


@pytest.fixture(scope="session")
def face() -> np.ndarray:
    return draw_face()


@pytest.fixture(scope="session")
def photographs(face: np.ndarray) -> dict[str, np.ndarray]:
    return draw_photographs(face)


@pytest.fixture(scope="session")
def scene(face: np.ndarray) -> np.ndarray:
    """Return a face of 100 pixels in a room with grain."""
    room = np.random.default_rng(0).integers(90, 130, (480, 640, 3)).astype(np.uint8)
    room[150:290, 260:400] = cv2.resize(face, (140, 140), interpolation=cv2.INTER_CUBIC)
    return room


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[Gallery]:
    """An open gallery with the empty collection ``default``."""
    with Gallery.create(tmp_path / "door.gallery", KEY) as opened_gallery:
        opened_gallery.add_collection()
        yield opened_gallery
