"""The gate names the first reason not to adapt, and the first reason to take an adaptation back."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedvisage.metrics.gate import SourcePredictions, collapse_reason, rank_correlation, refusal_reason, sample_batches

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
def test_batch_passes_only_if_large_varied_two_sided_and_shifted(
    logits: np.ndarray, videos: int, shift: float | None, reason: str
) -> None:
    assert refusal_reason(SourcePredictions(logits, videos, shift), threshold=0.0, scatter=0.2) == reason


def test_threshold_of_the_sites_defines_one_class() -> None:
    assert refusal_reason(SourcePredictions(SPREAD, 32, MOVED), threshold=2.99, scatter=0.2) == "one class"


def test_adaptation_that_keeps_order_and_both_classes_is_accepted() -> None:
    assert collapse_reason(SPREAD, 2 * SPREAD + 0.5, threshold=0.0) == ""


def test_reasons_for_collapse_are_distinguished() -> None:
    for adapted, reason in (
        (SPREAD + 9, "one class is left"),
        (-SPREAD, "the order of scores has changed"),
        (np.full(64, np.nan), "scores are not finite"),
    ):
        assert collapse_reason(SPREAD, adapted, threshold=0.0) == reason


@pytest.mark.parametrize(
    ("lengths", "count"),
    [([10], 1), ([64, 64], 1), ([64] * 4, 1), ([60] * 4, 2), ([64] * 8, 2), ([64] * 9, 3), ([2] * 100, 32)],
)
def test_sample_is_a_quarter_of_the_images_but_at_least_64(lengths: list[int], count: int) -> None:
    assert len(sample_batches([np.arange(length) for length in lengths])) == count


def test_rank_correlation_is_spearmans() -> None:
    draws = np.random.default_rng(0)
    for _ in range(20):
        first, second = draws.integers(0, 9, 40).astype(float), draws.normal(size=40)
        second += first * draws.normal()
        assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)
    assert rank_correlation(first, np.zeros(40)) == 0
