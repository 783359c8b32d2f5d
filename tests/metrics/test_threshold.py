"""Thresholds from histograms against thresholds from the scores themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metrics.examples import random_scores, scores_of, two_class_scores
from tests.refusals import refused

from fedvisage.metrics import pad, threshold
from fedvisage.metrics.scores import Scores

WIDTH = 40 / 4096


def histogram_of(scores: Scores) -> threshold.Histogram:
    """Return the histogram that a site with these scores would send."""
    return threshold.histogram(scores.live, scores.label)


def test_a_histogram_counts_every_score_once_and_knows_its_class() -> None:
    counts = histogram_of(scores_of([-20.0, 0.0, 20.0, 99.0], {"print": [-99.0, -1e-12]}))
    assert counts.shape == (2, 4096)
    assert counts.dtype == np.int64
    assert {int(i): int(counts[1, i]) for i in np.flatnonzero(counts[1])} == {0: 1, 2048: 1, 4095: 2}
    assert {int(i): int(counts[0, i]) for i in np.flatnonzero(counts[0])} == {0: 1, 2047: 1}


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        threshold.histogram(np.array([0.0, np.nan]), np.array([1, 0]))


@given(two_class_scores)
def test_rates_at_every_edge_equal_the_rates_of_the_scores(scores: Scores) -> None:
    inside = Scores(**{**vars(scores), "live": np.clip(scores.live, -19.99, 19.99)})
    rates = threshold.average_rates([histogram_of(inside)])
    assert rates.far is not None
    assert rates.frr is not None
    for edge in (0, 1, 700, 2048, 3000, 4095, 4096):
        assert (rates.far[edge], rates.frr[edge]) == pytest.approx(pad.far_frr(inside, threshold.EDGES[edge]))


@given(two_class_scores)
def test_source_eer_is_within_a_bin_of_the_exact_crossing(scores: Scores) -> None:
    inside = Scores(**{**vars(scores), "live": np.clip(scores.live, -19.9, 19.9)})
    actual = threshold.threshold_from_histograms([histogram_of(inside)], "source-eer")
    assert abs(actual.value - threshold.exact_crossing(inside.live, inside.label)) <= WIDTH


@pytest.mark.parametrize("seed", range(5))
def test_source_eer_of_many_scores_splits_the_errors_evenly(seed: int) -> None:
    scores = random_scores(seed, count=3000)
    actual = threshold.threshold_from_histograms([histogram_of(scores)], "source-eer")
    assert pad.far_frr(scores, actual.value) == pytest.approx((actual.far, actual.frr))
    assert actual.far == pytest.approx(actual.frr, abs=0.05)
    assert actual.far == pytest.approx(pad.eer(scores), abs=0.05)


def test_the_rule_of_training_pools_the_sites_and_does_not_average_them() -> None:
    """A large site and a small one whose scores lie higher: pooled, the large one decides."""
    large, small = random_scores(7, count=900), random_scores(8, count=60)
    small = Scores(**{**vars(small), "live": small.live + 3})
    counts = [histogram_of(large), histogram_of(small)]
    live, label = np.concatenate([large.live, small.live]), np.concatenate([large.label, small.label])
    actual = threshold.threshold_from_histograms(counts, "source-train-eer")
    assert abs(actual.value - threshold.exact_crossing(live, label)) <= WIDTH
    assert actual.far == pytest.approx(np.mean(live[label == 0] >= actual.value))
    assert actual.frr == pytest.approx(np.mean(live[label == 1] < actual.value))
    assert abs(actual.value - threshold.threshold_from_histograms(counts, "source-eer").value) > 10 * WIDTH


def test_well_separated_classes_get_the_middle_of_the_gap() -> None:
    actual = threshold.threshold_from_histograms([histogram_of(scores_of([3.0, 4.0], {"print": [-1.0, -5.0]}))])
    assert actual.value == pytest.approx(1.0, abs=WIDTH)
    assert (actual.far, actual.frr) == (0.0, 0.0)


def test_each_site_counts_equally_for_any_size() -> None:
    small = scores_of([1.0], {"print": [2.0]})
    large = scores_of([1.0] * 900, {"print": [-2.0] * 900})
    rates = threshold.average_rates([histogram_of(small), histogram_of(large)])
    at_zero = 2048
    assert rates.far is not None
    assert rates.far[at_zero] == pytest.approx((1 + 0) / 2)


def test_a_site_with_one_class_contributes_to_that_class() -> None:
    both = histogram_of(scores_of([1.0, -1.0], {"print": [-2.0]}))
    only_live = histogram_of(scores_of([1.0, 1.0], {}))
    rates = threshold.average_rates([both, only_live])
    assert rates.far is not None
    assert rates.frr is not None
    assert rates.frr[2048] == pytest.approx((1 / 2 + 0) / 2)
    assert rates.far[2048] == 0


@given(st.lists(two_class_scores, min_size=1, max_size=4))
def test_source_bpcer_is_the_strictest_edge_within_its_target(sites: list[Scores]) -> None:
    histograms = [histogram_of(scores) for scores in sites]
    actual = threshold.threshold_from_histograms(histograms, "source-bpcer-5pct")
    assert actual.frr is not None
    assert actual.frr <= 0.05 + 1e-9
    clipped = [np.clip(scores.bona_fide, -20, 19.999) for scores in sites]
    stricter = np.mean([np.mean(live < actual.value + WIDTH) for live in clipped])
    assert stricter > 0.05


def test_fixed_threshold_is_zero_and_reports_its_rates() -> None:
    scores = random_scores(3)
    actual = threshold.threshold_from_histograms([histogram_of(scores)], "fixed")
    assert actual.value == 0
    assert (actual.far, actual.frr) == pytest.approx(pad.far_frr(scores, 0.0))
    assert threshold.threshold_from_histograms([], "fixed").far is None


def test_target_eer_uses_the_target_and_is_marked() -> None:
    scores = random_scores(4)
    actual = threshold.threshold_from_target(scores)
    assert actual.rule == "target-eer"
    assert pad.hter(scores, actual.value) == pytest.approx(pad.eer(scores), abs=0.03)


@pytest.mark.parametrize("rule", ["source-eer", "source-train-eer", "source-bpcer-1pct"])
def test_missing_class_is_refused(rule: str) -> None:
    with refused("evaluation.threshold", rule, "attacks"):
        threshold.threshold_from_histograms([histogram_of(scores_of([1.0], {}))], rule)


@pytest.mark.parametrize("rule", ["target-eer", "best", ""])
def test_unsupported_rules_are_refused_with_the_choices(rule: str) -> None:
    with refused("evaluation.threshold", f"'{rule}'", "source-eer"):
        threshold.threshold_from_histograms([histogram_of(random_scores(0))], rule)


@pytest.mark.parametrize("seed", range(3))
def test_summary_figures_of_a_histogram_match_the_scores(seed: int) -> None:
    scores = random_scores(seed, count=600)  # rounded to 0.1, so a bin holds one distinct value at most
    counts = histogram_of(scores)
    assert threshold.auc_from_histogram(counts) == pytest.approx(pad.auc(scores))
    assert threshold.eer_from_histogram(counts) == pytest.approx(pad.eer(scores))


def test_summary_figures_of_one_class_are_undefined() -> None:
    counts = histogram_of(scores_of([1.0], {}))
    assert threshold.auc_from_histogram(counts) is None
    assert threshold.eer_from_histogram(counts) is None


def test_the_auc_of_completely_inverted_scores_is_zero_without_a_sign() -> None:
    counts = threshold.histogram(np.array([-1.0, -2.0, 1.0, 2.0]), np.array([1, 1, 0, 0]))
    assert f"{threshold.auc_from_histogram(counts):.4f}" == "0.0000"
