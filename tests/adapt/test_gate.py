"""The gate names the first reason not to adapt, and the first reason to take an adaptation back."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedvisage.adapt.gate import Glimpse, closed, collapsed, rank_correlation

SPREAD = np.linspace(-3, 3, 64)
MOVED = 0.5


@pytest.mark.parametrize(
    ("logits", "videos", "shift", "reason"),
    [
        (SPREAD, 32, MOVED, ""),
        (SPREAD[::8], 8, MOVED, "too small"),
        (SPREAD, 3, MOVED, "too few videos"),
        (SPREAD + 10, 32, MOVED, "one class"),
        (SPREAD - 10, 32, MOVED, "one class"),
        (SPREAD, 32, 0.1, "not moved"),
        (SPREAD, 32, None, ""),
    ],
)
def test_a_batch_passes_only_if_it_is_large_varied_two_sided_and_moved(
    logits: np.ndarray, videos: int, shift: float | None, reason: str
) -> None:
    assert closed(Glimpse(logits, videos, shift), threshold=0.0, scatter=0.2) == reason


def test_the_threshold_of_the_sites_says_what_one_class_is() -> None:
    assert closed(Glimpse(SPREAD, 32, MOVED), threshold=2.99, scatter=0.2) == "one class"


def test_an_adaptation_that_keeps_order_and_both_classes_stands() -> None:
    assert collapsed(SPREAD, 2 * SPREAD + 0.5, threshold=0.0) == ""


def test_collapses_are_told_apart() -> None:
    assert collapsed(SPREAD, SPREAD + 9, threshold=0.0) == "one class is left"
    assert collapsed(SPREAD, -SPREAD, threshold=0.0) == "the order of scores has changed"
    assert collapsed(SPREAD, np.full(64, np.nan), threshold=0.0) == "scores are not finite"


def test_rank_correlation_is_spearmans() -> None:
    draws = np.random.default_rng(0)
    for _ in range(20):
        first, second = draws.integers(0, 9, 40).astype(float), draws.normal(size=40)
        second += first * draws.normal()
        assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)
    assert rank_correlation(first, np.zeros(40)) == 0
