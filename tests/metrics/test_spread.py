"""The spread of a model's accuracies over groups of people."""

import pytest

from fedvisage.metrics.scores import spread_of


def test_spread_is_that_of_four_accuracies_worked_out_by_hand() -> None:
    """Errors of 2, 4, 4 and 6 per cent: the mean is 4, squares of deviations sum up to 8, the ratio is 3."""
    actual = spread_of([0.98, 0.96, 0.96, 0.94])
    assert actual == {
        "mean": pytest.approx(0.96),
        "std": pytest.approx((0.0008 / 3) ** 0.5),
        "skewed_error_ratio": pytest.approx(3.0),
    }


def test_without_an_error_in_a_group_there_is_no_ratio() -> None:
    assert spread_of([1.0, 0.9])["skewed_error_ratio"] is None
