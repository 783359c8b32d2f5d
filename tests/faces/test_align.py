"""Alignment by five points, upside-down pictures, pictures without colours, and square crops."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.datasets.importers.files import picture

from fedvisage.base.errors import BadFile
from fedvisage.faces.align import PLACES, SIDE, Image, align, detect_upright, is_grey, similarity
from fedvisage.faces.cropping import crop_face, make_cropper
from fedvisage.faces.detection import Face


def transform(points: np.ndarray, angle: float, scale: float, shift: tuple[float, float]) -> np.ndarray:
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.asarray(scale * points @ rotation.T + shift)


@pytest.mark.parametrize(("angle", "scale"), [(0.0, 1.0), (0.4, 2.5), (-1.2, 0.7), (3.0, 1.3)])
def test_similarity_recovers_a_known_transform(angle: float, scale: float) -> None:
    moved = transform(PLACES, angle, scale, (30.0, -12.0))
    matrix = similarity(moved, PLACES)
    assert np.allclose(moved @ matrix[:, :2].T + matrix[:, 2], PLACES)
    assert np.isclose(np.linalg.det(matrix[:, :2]), scale**-2), "scaled back, and not mirrored"


def test_similarity_never_mirrors() -> None:
    assert np.linalg.det(similarity(PLACES * (-1, 1), PLACES)[:, :2]) > 0


def test_similarity_of_noisy_points_is_the_least_squares_solution() -> None:
    rng = np.random.default_rng(0)
    moved = transform(PLACES, 0.3, 1.7, (5.0, 9.0)) + rng.normal(0, 3, PLACES.shape)
    x, y = moved.T
    one, zero = np.ones(5), np.zeros(5)
    rows = np.concatenate([np.stack([x, -y, one, zero], 1), np.stack([y, x, zero, one], 1)])
    a, b, left, top = np.linalg.lstsq(rows, PLACES.T.ravel(), rcond=None)[0]
    assert np.allclose(similarity(moved, PLACES), [[a, -b, left], [b, a, top]])


@pytest.mark.parametrize("scale", [0.8, 2.4, 2.5, 9.0])
@pytest.mark.parametrize("size", [48, 112])
def test_align_moves_marks_to_the_reference_points(scale: float, size: int) -> None:
    points = transform(PLACES, 0.2, scale, (20.0 * scale, 9.0 * scale))
    side = int(points.max() + 30 * scale)
    image = np.zeros((side, side, 3), np.uint8)
    row, column = np.mgrid[:side, :side]
    for x, y in points:
        image[(row - y) ** 2 + (column - x) ** 2 < (4 * scale) ** 2] = 255
    crop, points_in_crop = align(image, points, size)
    places = PLACES * (size / SIDE)
    assert crop.shape == (size, size, 3)
    assert np.abs(points_in_crop - places).max() < 0.02 * size
    assert all(crop[round(y), round(x), 0] > 128 for x, y in places)


def face(side: float, confidence: float, left: float = 10, top: float = 20) -> Face:
    return Face(np.array([left, top, side, side]), np.zeros((5, 2)), confidence)


def mark_top() -> Image:
    """Return a picture with a white top, which shows its orientation."""
    picture = np.zeros((100, 80, 3), np.uint8)
    picture[:10] = 255
    return picture


def make_detector_of(upright: list[Face], turned: list[Face]) -> tuple[list[str], Callable[[Image], list[Face]]]:
    """Return a detector with fixed results for the marked picture, and the orientations in which it was called."""
    orientations: list[str] = []

    def detect(picture: Image) -> list[Face]:
        orientations.append("upright" if picture[0].all() else "turned")
        return upright if picture[0].all() else turned

    return orientations, detect


@pytest.mark.parametrize(
    ("upright", "turned", "looks", "is_turned"),
    [
        ([face(30, 0.9999)], [face(30, 1.0)], 1, False),  # sure: one look is enough
        ([face(30, 0.98)], [face(30, 0.9995)], 2, True),
        ([face(30, 0.995)], [face(30, 0.992)], 2, False),
        ([], [face(30, 0.98)], 6, False),  # too unsure to turn a picture for; four more looks with a border
        ([], [face(30, 0.998)], 2, True),
        ([], [], 6, False),
    ],
)
def test_picture_is_turned_if_that_raises_the_confidence(
    upright: list[Face], turned: list[Face], looks: int, is_turned: bool
) -> None:
    orientations, detect = make_detector_of(upright, turned)
    result = detect_upright(mark_top(), detect)
    assert len(orientations) == looks
    assert result.turns == 2 * is_turned
    assert result.faces == (turned if is_turned else upright)
    assert bool(result.picture[-1].all()) == is_turned


def test_faces_are_sorted_by_size_with_boxes_of_the_original() -> None:
    small, large = face(10, 0.9999, left=0, top=0), face(30, 0.9999, left=50, top=40)
    _, detect = make_detector_of([small, large], [])
    assert detect_upright(mark_top(), detect).boxes == [[50, 40, 30, 30], [0, 0, 10, 10]]
    _, detect = make_detector_of([], [small, large])
    assert detect_upright(mark_top(), detect).boxes == [[0, 30, 30, 30], [70, 90, 10, 10]]


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


def test_the_centre_is_cut_out_and_kept_at_its_size() -> None:
    image = picture(1, height=20, width=30)
    cropped = make_cropper("centre", 20)(image)
    np.testing.assert_array_equal(cropped.image, image[:, 5:25])
    assert not cropped.upscaled


def test_shrinking_averages_pixels() -> None:
    image = picture(1, 40, 40)
    expected = image.reshape(20, 2, 20, 2, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(make_cropper("centre", 20)(image).image, expected, atol=0.51)


def test_enlarged_crop_is_marked() -> None:
    cropped = make_cropper("centre", 48)(picture(1))
    assert cropped.upscaled
    assert cropped.image.shape == (48, 48, 3)


def test_uncropped_images_must_be_square() -> None:
    assert make_cropper("none", 12)(picture(1)).image.shape == (12, 12, 3)
    with pytest.raises(BadFile, match="30×20"):
        make_cropper("none", 12)(picture(1, 20, 30))


def square_face(x: float, y: float, side: float) -> Face:
    points = np.array([[x + side / 4, y], [x, y], [x, y], [x, y], [x + side, y + side]])
    return Face(np.array([x, y, side, side]), points)


def test_face_crop_has_a_margin_and_moves_the_points() -> None:
    image = picture(1, 200, 200)
    cropped = crop_face(image, square_face(60, 80, 50), 70)
    np.testing.assert_array_equal(cropped.image, image[70:140, 50:120])
    assert cropped.points is not None
    np.testing.assert_allclose(cropped.points[4], [60, 60])


def test_crop_of_a_face_at_the_edge_stays_inside_the_image() -> None:
    image = picture(1, 100, 100)
    np.testing.assert_array_equal(crop_face(image, square_face(70, 0, 40), 56).image, image[:56, 44:])


def test_image_without_a_face_is_refused() -> None:
    with pytest.raises(BadFile, match="face"):
        make_cropper("face", 64)(np.full((128, 128, 3), 90, np.uint8))
