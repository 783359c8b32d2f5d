"""Faces in pictures that are upside down, and pictures without colours."""

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


def mark_top() -> Image:
    """Return a picture with a white top, which shows its orientation."""
    picture = np.zeros((100, 80, 3), np.uint8)
    picture[:10] = 255
    return picture


def make_detector_of(upright: list[Face], turned: list[Face]) -> tuple[list[str], Callable[[Image], list[Face]]]:
    """Return a detector with fixed results for the marked picture, and the orientations in which it was called."""
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
def test_picture_is_turned_if_that_raises_the_confidence(
    upright: list[Face], turned: list[Face], looks: int, is_turned: bool
) -> None:
    shown, detect = make_detector_of(upright, turned)
    result = detect_upright(mark_top(), detect)
    assert len(shown) == looks
    assert result.turned == is_turned
    assert result.faces == (turned if is_turned else upright)
    assert bool(result.picture[-1].all()) == is_turned


def test_faces_are_sorted_by_size_with_boxes_of_the_original() -> None:
    small, large = face(10, 0.9999, left=0, top=0), face(30, 0.9999, left=50, top=40)
    _, detect = make_detector_of([small, large], [])
    assert detect_upright(mark_top(), detect).boxes == [[50, 40, 30, 30], [0, 0, 10, 10]]
    _, detect = make_detector_of([], [small, large])
    assert detect_upright(mark_top(), detect).boxes == [[0, 30, 30, 30], [70, 90, 10, 10]]


def test_upside_down_face_has_the_right_box() -> None:
    image = photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0]
    wall = np.full((300, 400, 3), 120, np.uint8)
    wall[20:244, 30:254] = cv2.resize(image, (224, 224))
    detect = make_detector()
    upright, turned = detect_upright(wall, detect), detect_upright(wall[::-1, ::-1].copy(), detect)
    assert (upright.turned, turned.turned) == (False, True)
    x, y, w, h = upright.boxes[0]
    np.testing.assert_allclose(turned.boxes[0], [400 - x - w, 300 - y - h, w, h], atol=3)
    np.testing.assert_array_equal(upright.picture, turned.picture)


def add_noise(image: NDArray[np.int64], by: int) -> Image:
    noise = np.random.default_rng(0).integers(-by, by + 1, image.shape)
    return np.asarray(np.clip(image + noise, 0, 255), np.uint8)


def test_picture_without_colours_is_grey_despite_noise() -> None:
    ramp = np.tile(np.arange(40, 200)[:, None, None], (1, 160, 3))
    tinted = ramp + np.array([0, 12, 24])
    patch = ramp.copy()
    patch[:24, :24] += np.array([0, 60, 0])  # 2 % of it is green
    assert is_grey(ramp.astype(np.uint8))
    assert is_grey(add_noise(ramp, 3))
    assert not is_grey(add_noise(tinted, 3))
    assert not is_grey(add_noise(patch, 3))
