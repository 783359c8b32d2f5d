"""Operations on boxes in the stages of the cascade."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.faces.detection import make_square, move_corners, suppress


def test_box_with_the_higher_score_is_kept() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [40, 40, 50, 50]], float)  # the first two share 90 of 110
    scores = np.array([0.7, 0.9, 0.8])
    assert suppress(boxes, scores, 0.8, "union").tolist() == [1, 2]
    assert suppress(boxes, scores, 0.82, "union").tolist() == [1, 2, 0]


def test_inner_box_overlaps_as_a_share_of_the_smaller_box() -> None:
    boxes = np.array([[0, 0, 10, 10], [2, 2, 6, 6]], float)
    scores = np.array([0.9, 0.8])
    assert suppress(boxes, scores, 0.7, "union").tolist() == [0, 1]
    assert suppress(boxes, scores, 0.7, "smaller").tolist() == [0]


def test_suppression_of_no_boxes_is_empty() -> None:
    assert suppress(np.zeros((0, 4)), np.zeros(0), 0.5, "union").tolist() == []


def suppress_naively(boxes: np.ndarray, scores: np.ndarray, limit: float) -> list[int]:
    """Keep each box, highest score first, that overlaps no kept one too much."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda one: (-scores[one], one)):
        pixels = {(x, y) for x in range(boxes[index, 0], boxes[index, 2]) for y in range(*boxes[index, 1::2])}
        others = [{(x, y) for x in range(boxes[k, 0], boxes[k, 2]) for y in range(*boxes[k, 1::2])} for k in kept]
        if all(len(pixels & other) <= limit * len(pixels | other) for other in others):
            kept.append(index)
    return kept


corner, length = st.integers(0, 12), st.integers(1, 8)


@given(st.lists(st.tuples(corner, corner, length, length, st.integers(0, 5)), max_size=8))
def test_suppression_equals_counting_pixels(values: list[tuple[int, ...]]) -> None:
    boxes = np.array([(x, y, x + w, y + h) for x, y, w, h, _ in values], int).reshape(-1, 4)
    scores = np.array([score for *_, score in values], float)
    assert suppress(boxes.astype(float), scores, 0.5, "union").tolist() == suppress_naively(boxes, scores, 0.5)


def test_corners_move_by_shares_of_the_sides() -> None:
    boxes = move_corners(np.array([[10.0, 20, 30, 60]]), np.array([[0.1, -0.1, 0.0, 0.25]]))
    np.testing.assert_allclose(boxes, [[12, 16, 30, 70]])


def test_squares_have_the_longer_side_and_the_same_middle() -> None:
    np.testing.assert_allclose(make_square(np.array([[10.0, 20, 30, 60]])), [[0, 20, 40, 60]])
