"""Error rates against hand-checked numbers, scikit-learn and loops."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve
from tests.metrics.examples import random_scores, scores_of, two_class_scores

from fedvisage.metrics import pad
from fedvisage.metrics.scores import Scores

TEN = scores_of(
    bona_fide=[-1.0, 0.5, 1.0, 2.0, 3.0],
    attacks={"print": [-3.0, -2.0, 1.5], "mask": [0.5, -0.5]},
)


def test_rates_by_hand() -> None:
    # At 0.5: attacks ≥ 0.5 are 1.5 and 0.5 (a tie is live); bona fide < 0.5 is −1.
    assert pad.far_frr(TEN, 0.5) == (2 / 5, 1 / 5)
    assert pad.hter(TEN, 0.5) == pytest.approx(0.3)
    assert pad.apcer_by_species(TEN, 0.5) == {"mask": 1 / 2, "print": 1 / 3}
    assert pad.apcer(TEN, 0.5) == 1 / 2
    assert pad.apcer(TEN, 0.5, "pooled") == 2 / 5
    assert pad.acer(TEN, 0.5) == pytest.approx(0.35)


def test_auc_counts_pairs_with_ties_as_half() -> None:
    pairs = [(g > a) + 0.5 * (g == a) for g in TEN.bona_fide for a in TEN.attack]
    assert pad.auc(TEN) == pytest.approx(sum(pairs) / len(pairs))


def test_eer_by_hand_is_interpolated() -> None:
    # Points (FAR, FRR) going up: (1,0) … (3/5,0) (3/5,1/5) (2/5,1/5) → at 0.5 both classes step: (1/5,2/5).
    # Crossing between (2/5,1/5) and (1/5,2/5): the middle.
    assert pad.eer(TEN) == pytest.approx(0.3)


@given(two_class_scores)
def test_auc_equals_scikit_learn(scores: Scores) -> None:
    assert pad.auc(scores) == pytest.approx(roc_auc_score(scores.label, scores.live))


@given(two_class_scores)
def test_eer_lies_on_scikit_learns_roc_where_far_equals_frr(scores: Scores) -> None:
    far, recall, _ = roc_curve(scores.label, scores.live, drop_intermediate=False)
    # Walk the ROC polyline in fine steps and take the point closest to the diagonal.
    walk = np.concatenate([np.linspace(0, 1, 201) + step for step in range(len(far) - 1)])
    far_walk, frr_walk = (
        np.interp(walk, np.arange(len(far)), far),
        1 - np.interp(walk, np.arange(len(far)), recall),
    )
    closest = np.abs(far_walk - frr_walk).argmin()
    assert pad.eer(scores) == pytest.approx((far_walk[closest] + frr_walk[closest]) / 2, abs=0.005)


@pytest.mark.parametrize("target", [0.01, 0.05, 0.29])
@given(scores=two_class_scores)
def test_tpr_at_fpr_is_the_best_detection_with_few_enough_false_alarms(scores: Scores, target: float) -> None:
    best = 0.0
    for threshold in [*scores.live, np.inf]:
        false_alarms = np.mean([value < threshold for value in scores.bona_fide])
        if false_alarms <= target:
            best = max(best, np.mean([value < threshold for value in scores.attack]))
    assert pad.tpr_at_fpr(scores, target) == pytest.approx(best)


@pytest.mark.parametrize("target", [0.10, 0.05, 0.34])
@pytest.mark.parametrize("attacks", ["worst-species", "pooled"])
@given(scores=two_class_scores)
def test_bpcer_at_apcer_is_the_lowest_over_all_thresholds(scores: Scores, target: float, attacks: pad.Attacks) -> None:
    possible = [
        pad.bpcer(scores, threshold)
        for value in scores.live
        for threshold in (value, np.nextafter(value, np.inf))
        if pad.apcer(scores, threshold, attacks) <= target
    ]
    assert pad.bpcer_at_apcer(scores, target, attacks) == pytest.approx(min(possible))


def test_one_false_alarm_in_a_hundred_is_one_percent() -> None:
    scores = scores_of([float(value) for value in range(100)], {"print": [0.5, 1.5]})
    assert pad.strictest_threshold(scores.bona_fide, 0.01) == 1.0
    assert pad.tpr_at_fpr(scores, 0.01) == 0.5


def test_tpr_at_fpr_differs_from_the_roc_of_the_other_class() -> None:
    scores = scores_of([0.0, 2.0, 3.0, 4.0], {"print": [1.0, -1.0, -2.0, -3.0, -4.0]})
    far, recall, _ = roc_curve(scores.label, scores.live)
    bona_fide_as_positive = recall[far <= 0.01].max()
    assert bona_fide_as_positive == pytest.approx(3 / 4)
    assert pad.tpr_at_fpr(scores, 0.01) == pytest.approx(4 / 5)


@pytest.mark.long
@given(two_class_scores, st.floats(0.01, 9), st.floats(-5, 5))
def test_stretching_the_logits_keeps_auc_and_eer(scores: Scores, factor: float, offset: float) -> None:
    # Powers of two times integers stay exact, so no ties appear or vanish.
    integers = np.round(scores.live * 100)
    other = Scores(**{**vars(scores), "live": integers * 4 ** round(factor) + round(offset)})
    assert pad.auc(other) == pad.auc(Scores(**{**vars(scores), "live": integers}))
    assert pad.eer(other) == pad.eer(Scores(**{**vars(scores), "live": integers}))


@given(two_class_scores)
def test_inverting_scores_and_labels_keeps_auc_and_eer(scores: Scores) -> None:
    turned = Scores(**{**vars(scores), "live": -scores.live, "label": 1 - scores.label})
    assert pad.auc(turned) == pytest.approx(pad.auc(scores))
    assert pad.eer(turned) == pytest.approx(pad.eer(scores))


@given(two_class_scores)
def test_inverting_only_the_scores_reflects_the_auc(scores: Scores) -> None:
    assert pad.auc(Scores(**{**vars(scores), "live": -scores.live})) == pytest.approx(1 - pad.auc(scores))


@given(two_class_scores, st.floats(-20, 20))
def test_the_worst_species_is_never_better_than_the_pool(scores: Scores, threshold: float) -> None:
    assert pad.apcer(scores, threshold) >= pad.apcer(scores, threshold, "pooled") - 1e-12
    assert pad.bpcer_at_apcer(scores, 0.1) >= pad.bpcer_at_apcer(scores, 0.1, "pooled")


@given(two_class_scores, st.floats(-20, 20), st.floats(0, 10))
def test_a_stricter_threshold_trades_far_for_frr(scores: Scores, threshold: float, step: float) -> None:
    far, frr = pad.far_frr(scores, threshold)
    stricter_far, stricter_frr = pad.far_frr(scores, threshold + step)
    assert stricter_far <= far
    assert stricter_frr >= frr


@pytest.mark.parametrize(
    ("scores", "defined"),
    [
        (scores_of([1.0, 2.0], {}), {"bpcer", "apcer", "count"}),
        (scores_of([], {"print": [1.0]}), {"apcer", "apcer_pooled", "count"}),
        (scores_of([], {}), {"apcer", "count"}),
    ],
)
def test_one_class_gives_null_in_valid_json(scores: Scores, defined: set[str]) -> None:
    figures = pad.evaluate(scores, 0.0)
    assert {key for key, value in figures.items() if value is not None and key != "bpcer_at_apcer"} == defined
    assert set(figures["bpcer_at_apcer"].values()) == {None}
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_evaluation_has_the_documented_figure_names() -> None:
    figures = pad.evaluate(random_scores(0), 0.5)
    promised = {"hter", "eer", "auc", "tpr_at_fpr_1pct", "apcer", "bpcer", "acer", "bpcer_at_apcer"}
    assert promised <= set(figures)
    assert set(figures["bpcer_at_apcer"]) == {"10pct", "5pct", "1pct"}
    assert figures["hter"] == pytest.approx((figures["apcer_pooled"] + figures["bpcer"]) / 2)
    assert not any(isinstance(value, float) and math.isnan(value) for value in figures.values())
