"""Faces on pictures that stand on their head, and pictures without colours."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from fedvisage.faces.align import Image, detect_upright, is_grey
from fedvisage.faces.cropping import make_detector
from fedvisage.faces.detection import Face
from fedvisage.render.identities import Identities, photograph_person, photographs_of


def face(side: float, confidence: float, left: float = 10, top: float = 20) -> Face:
    return Face(np.array([left, top, side, side]), np.zeros((5, 2)), confidence)


def marked() -> Image:
    """Return a picture with a white top, so that it is known when it stands on its head."""
    picture = np.zeros((100, 80, 3), np.uint8)
    picture[:10] = 255
    return picture


def seeing(upright: list[Face], turned: list[Face]) -> tuple[list[str], Callable[[Image], list[Face]]]:
    """Return the list of how a detector is shown the marked picture, and that detector, which knows what it finds."""
    shown: list[str] = []

    def detect(picture: Image) -> list[Face]:
        shown.append("upright" if picture[0].all() else "turned")
        return upright if picture[0].all() else turned

    return shown, detect


@pytest.mark.parametrize(
    ("upright", "turned", "looks", "is_turned"),
    [
        ([face(30, 0.9999)], [face(30, 1.0)], 1, False),  # sure: one look is enough
        ([face(30, 0.98)], [face(30, 0.9995)], 2, True),
        ([face(30, 0.995)], [face(30, 0.992)], 2, False),
        ([], [face(30, 0.98)], 2, False),  # too unsure to turn a picture for
        ([], [face(30, 0.998)], 2, True),
        ([], [], 2, False),
    ],
)
def test_a_picture_is_turned_where_its_largest_face_is_surer_then(
    upright: list[Face], turned: list[Face], looks: int, is_turned: bool
) -> None:
    shown, detect = seeing(upright, turned)
    found = detect_upright(marked(), detect)
    assert len(shown) == looks
    assert found.turned == is_turned
    assert found.faces == (turned if is_turned else upright)
    assert bool(found.picture[-1].all()) == is_turned


def test_faces_come_by_size_and_boxes_are_those_of_the_picture_as_it_came() -> None:
    small, large = face(10, 0.9999, left=0, top=0), face(30, 0.9999, left=50, top=40)
    _, detect = seeing([small, large], [])
    assert detect_upright(marked(), detect).boxes == [[50, 40, 30, 30], [0, 0, 10, 10]]
    _, detect = seeing([], [small, large])
    assert detect_upright(marked(), detect).boxes == [[0, 30, 30, 30], [70, 90, 10, 10]]


def test_a_face_upside_down_is_found_where_it_is() -> None:
    image = photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0]
    wall = np.full((300, 400, 3), 120, np.uint8)
    wall[20:244, 30:254] = cv2.resize(image, (224, 224))
    detect = make_detector()
    upright, turned = detect_upright(wall, detect), detect_upright(wall[::-1, ::-1].copy(), detect)
    assert (upright.turned, turned.turned) == (False, True)
    x, y, w, h = upright.boxes[0]
    np.testing.assert_allclose(turned.boxes[0], [400 - x - w, 300 - y - h, w, h], atol=3)
    np.testing.assert_array_equal(upright.picture, turned.picture)


def noisy(image: NDArray[np.int64], by: int) -> Image:
    noise = np.random.default_rng(0).integers(-by, by + 1, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def test_a_picture_without_colours_is_grey_also_with_a_cameras_noise() -> None:
    ramp = np.tile(np.arange(40, 200)[:, None, None], (1, 160, 3))
    tinted = ramp + np.array([0, 12, 24])
    patch = ramp.copy()
    patch[:24, :24] += np.array([0, 60, 0])  # 2 % of it is green
    assert is_grey(ramp.astype(np.uint8))
    assert is_grey(noisy(ramp, 3))
    assert not is_grey(noisy(tinted, 3))
    assert not is_grey(noisy(patch, 3))
