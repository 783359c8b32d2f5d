"""Figures by the rules of papers, against scikit-learn's ROC and loops over thresholds."""

import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import roc_curve
from tests.metrics.examples import scores_of, two_class_scores

from fedvisage.metrics import pad
from fedvisage.metrics.scores import Scores
from fedvisage.metrics.threshold import Threshold, figures_as_published


@given(two_class_scores)
def test_bona_fide_are_the_positive_class_of_scikit_learns_roc(scores: Scores) -> None:
    """As FLIP's and FedSIS's scripts read it: labels are 1 for live, FPR is the share of attacks taken as live."""
    fpr, tpr, _ = roc_curve(scores.label, scores.live, pos_label=1, drop_intermediate=False)
    assert figures_as_published(scores, None)["tpr_bona_fide_1pct"] == pytest.approx(tpr[fpr <= 0.01][-1])


def test_the_two_readings_of_tpr_differ_where_one_class_has_the_outlier() -> None:
    scores = scores_of([-5.0, 1.0, 2.0, 3.0], {"print": [-1.0, -2.0, -3.0, -4.0]})
    assert figures_as_published(scores, None)["tpr_bona_fide_1pct"] == 3 / 4
    assert pad.tpr_at_fpr(scores, 0.01) == 0.0


def test_attacks_of_all_species_are_one_class_in_the_published_rate() -> None:
    """One mask above all bona fide images is no more than 1 % of 101 attacks, but all of its own species."""
    scores = scores_of([1.0, 2.0], {"print": [-1.0] * 100, "mask": [5.0]})
    assert figures_as_published(scores, None)["tpr_bona_fide_1pct"] == 1.0
    assert pad.bpcer_at_apcer(scores, 0.01) == 1.0


def test_of_equally_close_errors_the_highest_threshold_is_taken() -> None:
    """At 1 half of the attacks are taken as live, at 2 half of the bona fide as attacks."""
    actual = figures_as_published(scores_of([1.0, 2.0], {"print": [0.0, 1.0]}), None)
    assert actual["threshold_target_eer"] == 2.0
    assert actual["hter_target_eer"] == 1 / 4


@given(two_class_scores)
def test_hter_at_the_targets_own_threshold_is_where_its_errors_are_closest(scores: Scores) -> None:
    actual = figures_as_published(scores, None)
    levels = np.unique(scores.live)
    middles = np.concatenate([[levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]])
    rates = [(np.mean(scores.attack >= at), np.mean(scores.bona_fide < at)) for at in (*levels, *middles)]
    least = min(abs(far - frr) for far, frr in rates)
    far, frr = pad.far_frr(scores, actual["threshold_target_eer"])
    assert abs(far - frr) == pytest.approx(least)
    assert actual["hter_target_eer"] == pytest.approx((far + frr) / 2)


def test_hter_uses_the_training_threshold() -> None:
    scores = scores_of([0.0, 1.0, 2.0, 3.0], {"print": [-1.0, 0.5, 1.5, -4.0]})
    actual = figures_as_published(scores, Threshold(1.25, "source-train-eer", None, None))
    assert actual["hter_train_eer"] == (1 / 4 + 2 / 4) / 2
    assert actual["threshold_train_eer"] == 1.25


def test_a_target_with_one_class_has_no_such_figures() -> None:
    assert figures_as_published(scores_of([1.0, 2.0], {}), None) == {}
