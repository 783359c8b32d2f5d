"""Alignment by five points, compared with known transforms."""

import numpy as np
import pytest

from fedvisage.faces.align import PLACES, SIDE, align, similarity


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
