"""Averaged error-rate curves, and operating points chosen on them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from tests.refusals import refused

from fedvisage.metrics.generic import threshold_at_fmr
from fedvisage.metrics.operating_point import (
    ALL,
    DIFFERENCES,
    ClassCounts,
    ErrorCurves,
    average_curves,
    choose_point,
    largest_rates,
    parse_point,
    read_curves,
    wilson,
)
from fedvisage.metrics.threshold import LIMIT, histogram

SITES = 3


def counts(logits: np.ndarray, people: int) -> ClassCounts:
    return ClassCounts(histogram(logits, np.ones(len(logits), np.int64))[1], people, people)


def draw(seed: int, centre: float, people: int = 200) -> tuple[np.ndarray, ClassCounts]:
    logits = np.random.default_rng(seed).normal(centre, 2, people)
    return logits, counts(logits, people)


def curves_of(people: int = 200, sites: int = SITES) -> ErrorCurves:
    live = [draw(seed, 3, people)[1] for seed in range(sites)]
    prints = [draw(seed, -3, people)[1] for seed in range(10, 10 + sites)]
    replays = [draw(seed, -1, people)[1] for seed in range(20, 20 + sites)]
    attacks = [ClassCounts(a.bins + b.bins, people, 2 * people) for a, b in zip(prints, replays, strict=True)]
    curves = average_curves(live, {ALL: attacks, "print": prints, "replay": replays}, pooled=False)
    assert curves is not None
    return curves


def test_rates_are_the_mean_of_the_sites_rounded_up_to_two_digits() -> None:
    logits = [draw(seed, 3, people)[0] for seed, people in enumerate((50, 100, 400))]
    live = [counts(values, len(values)) for values in logits]
    attacks = [draw(seed, -3)[1] for seed in range(10, 13)]
    curves = average_curves(live, {ALL: attacks}, pooled=False)
    assert curves is not None
    for threshold, rate in zip(curves.thresholds, curves.rejected.rates, strict=True):
        exact = np.mean([(values < threshold).mean() for values in logits])
        assert exact - 1e-9 <= rate <= exact * 1.1 + 1e-9
        assert float(f"{rate:.2g}") == rate


def test_largest_rates_bound_those_of_every_threshold() -> None:
    live, attacks = (
        [draw(seed, centre)[0] for seed in range(first, first + SITES)] for first, centre in ((0, 3), (10, -1))
    )
    counted = [[counts(values, len(values)) for values in scores] for scores in (live, attacks)]
    curves = average_curves(counted[0], {ALL: counted[1]}, pooled=False)
    for threshold in np.random.default_rng(0).uniform(-4, 6, 50):
        rejected = np.mean([(values < threshold).mean() for values in live])
        accepted = np.mean([(values >= threshold).mean() for values in attacks])
        bounds = largest_rates(curves, float(threshold))
        assert rejected <= bounds["BPCER"] < rejected + 0.08
        assert accepted <= bounds["APCER"] < accepted + 0.08
    assert largest_rates(None, 0.0) == {}


def test_unequal_sites_count_like_equal_sites_of_the_same_precision() -> None:
    live = [draw(seed, 3, people)[1] for seed, people in enumerate((50, 100, 400))]
    curves = average_curves(live, {ALL: live}, pooled=False)
    assert curves is not None
    assert curves.rejected.people == math.floor(9 / (1 / 50 + 1 / 100 + 1 / 400))
    assert curves.rejected.presentations == 550


def test_type_held_out_by_two_sites_has_no_curve() -> None:
    live = [draw(seed, 3)[1] for seed in range(SITES)]
    attacks = [draw(seed, -3)[1] for seed in range(10, 10 + SITES)]
    empty = counts(np.empty(0), 0)
    kept = average_curves(live, {ALL: attacks, "print": [*attacks[:2], empty]}, pooled=False)
    assert kept is not None
    assert set(kept.accepted) == {ALL}
    assert average_curves([*live[:2], empty], {ALL: attacks}, pooled=False) is None
    assert average_curves(live, {ALL: [*attacks[:2], empty]}, pooled=False) is None


def test_sites_that_claim_scores_without_presentations_do_not_count() -> None:
    """Three of them would otherwise end the run: a curve needs a presentation."""
    live = [draw(seed, 3)[1] for seed in range(SITES)]
    attacks = [draw(seed, -3)[1] for seed in range(10, 10 + SITES)]
    hostile = [ClassCounts(site.bins, site.people, 0) for site in attacks]
    kept = average_curves(live, {ALL: attacks, "print": hostile}, pooled=False)
    assert kept == average_curves(live, {ALL: attacks}, pooled=False)


def test_bpcer_is_the_highest_threshold_that_rejects_at_most_the_wished_share() -> None:
    curves = curves_of()
    point = choose_point(curves, "bpcer=5%", "pad", "model")
    position = curves.thresholds.index(point.value)
    assert curves.rejected.rates[position] <= 0.05 < curves.rejected.rates[position + 1]
    assert point.frr == curves.rejected.rates[position]
    assert point.far == curves.accepted[ALL].rates[position]


def test_apcer_is_the_lowest_threshold_at_which_no_type_is_accepted_more_often() -> None:
    curves = curves_of()
    point = choose_point(curves, "apcer=0.05", "pad", "model")
    position = curves.thresholds.index(point.value)
    worst = [max(curve.rates[at] for curve in curves.accepted.values()) for at in (position - 1, position)]
    assert worst[1] <= 0.05 < worst[0]
    assert set(point.estimates) == {"BPCER", "APCER", "APCER print", "APCER replay"}


def test_eer_is_where_both_errors_are_closest() -> None:
    curves = curves_of()
    point = choose_point(curves, "eer", "pad", "model")
    assert point.far is not None
    assert point.frr is not None
    gaps = [abs(far - frr) for far, frr in zip(curves.accepted[ALL].rates, curves.rejected.rates, strict=True)]
    assert abs(point.far - point.frr) == pytest.approx(min(gaps))


def test_fmr_agrees_with_the_rule_of_a_run_up_to_one_step_of_the_curve() -> None:
    rng = np.random.default_rng(0)
    sites = [
        [counts(LIMIT * np.clip(rng.normal(centre, 0.1, 40_000), -1, 1), 40_000) for centre in (0, 0.6)]
        for _ in range(SITES)
    ]
    impostor, genuine = zip(*sites, strict=True)
    curves = average_curves(genuine, {ALL: impostor}, pooled=True, scale=LIMIT)
    run_rule = threshold_at_fmr([np.stack([a.bins, b.bins]) for a, b in sites], 1e-3)
    assert run_rule is not None
    point = choose_point(curves, "fmr=1e-3", "recognition", "model")
    assert 0 <= point.value - run_rule.value <= 2 * 8 / 2048
    assert set(point.estimates) == {"FMR", "FNMR"}


def test_an_operating_point_states_its_rates_with_intervals_of_the_people() -> None:
    point = choose_point(curves_of(), "bpcer=5%", "pad", "model")
    estimate = point.estimates["BPCER"]
    assert (estimate.low, estimate.high) == pytest.approx(wilson(estimate.rate, 600))
    assert point.operating_point.startswith("bpcer=5%: BPCER ")
    assert "95%" in point.operating_point


@pytest.mark.parametrize(("rate", "people"), [(0.0, 100), (0.05, 100), (0.5, 37), (1.0, 12)])
def test_the_interval_has_the_ends_at_which_the_normal_test_just_accepts_the_rate(rate: float, people: int) -> None:
    for end in wilson(rate, people):
        if 0 < end < 1:
            assert (rate - end) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / people)


def test_rates_move_in_one_direction_and_survive_a_file() -> None:
    curves = curves_of()
    assert all(a <= b for a, b in pairwise(curves.rejected.rates))
    assert all(a >= b for curve in curves.accepted.values() for a, b in pairwise(curve.rates))
    assert ErrorCurves.model_validate_json(curves.model_dump_json()) == curves


@pytest.mark.parametrize(
    ("at", "task", "keywords"),
    [
        ("bpcer", "pad", ("eer",)),
        ("bpcer=0", "pad", ("between",)),
        ("bpcer=100%", "pad", ("between",)),
        ("bpcer=nan", "pad", ("nan",)),
        ("fmr=1e-3", "pad", ("fmr is for recognition", "apcer=… or eer")),
        ("apcer=5%", "recognition", ("apcer is for attack detection", "give fmr=… or eer")),
    ],
)
def test_operating_points_of_another_task_are_refused(at: str, task: str, keywords: tuple[str, ...]) -> None:
    with refused("--at", *keywords):
        choose_point(curves_of(), at, task, "model")  # type: ignore[arg-type]


def test_a_rate_needs_three_people_over_the_rate_of_every_class_that_it_concerns() -> None:
    curves = curves_of(people=100)  # three sites: 300 people per class
    choose_point(curves, "bpcer=1%", "pad", "model")
    with refused("--at", "bpcer=0.9%", "334", "300", "bpcer=1%"):
        choose_point(curves, "bpcer=0.9%", "pad", "model")
    fewer = curves.accepted | {"print": curves.accepted["print"].model_copy(update={"people": 20})}
    with refused("--at", "60", "print", "20", "apcer=15%"):
        choose_point(curves.model_copy(update={"accepted": fewer}), "apcer=5%", "pad", "model")


def test_refusal_of_a_model_without_curves_has_a_remedy_for_its_user() -> None:
    with refused("runs/old", "federation.rates", "train it again"):
        choose_point(None, "bpcer=1%", "pad", "runs/old")
    with refused("exported/pad", "no operating points; calibrate it for your camera: fedvisage calibrate"):
        choose_point(None, "bpcer=1%", "pad", "exported/pad", exported=True)
    with refused("exported/faces", "train it again"):
        choose_point(None, "fmr=1%", "recognition", "exported/faces", exported=True)


@pytest.mark.parametrize("text", ["bpcer=1%", "BPCER=0.01", " bpcer=1e-2 "])
def test_a_rate_may_be_a_percentage_or_a_share(text: str) -> None:
    assert parse_point(text).rate == pytest.approx(0.01)


def test_wish_is_refused_where_sites_disagree_by_more_than_it() -> None:
    attacks = [draw(seed, -9)[1] for seed in range(10, 13)]
    alike = average_curves([draw(seed, 3, 600)[1] for seed in range(3)], {ALL: attacks}, pooled=False)
    unlike = average_curves([draw(seed, 3 - 3 * seed, 600)[1] for seed in range(3)], {ALL: attacks}, pooled=False)
    assert choose_point(alike, "bpcer=10%", "pad", "model").frr == pytest.approx(0.1, abs=0.02)
    with refused("--at", "disagree", "BPCER", "bpcer=10%"):
        choose_point(unlike, "bpcer=10%", "pad", "model")
    assert choose_point(unlike, "eer", "pad", "model").value


def test_differences_beyond_chance_are_kept_in_coarse_steps() -> None:
    logits = [draw(seed, 3 - seed, 300) for seed in range(3)]
    curves = average_curves([site for _, site in logits], {ALL: [site for _, site in logits]}, pooled=False)
    assert curves is not None
    assert curves.rejected.differences is not None
    for threshold, difference in zip(curves.thresholds, curves.rejected.differences, strict=True):
        shares = [(values < threshold).mean() for values, _ in logits]
        mean = sum(shares) / 3
        exact = max(0, max(shares) - min(shares) - 1.96 * math.sqrt(2 * mean * (1 - mean) / 300))
        steps = [step for step in (0, *DIFFERENCES) if step >= exact - 1e-9]
        assert difference == steps[0]


def test_curves_without_differences_keep_their_description() -> None:
    curves = curves_of()
    earlier = curves.model_copy(update={"rejected": curves.rejected.model_copy(update={"differences": None})})
    assert "differences" not in earlier.model_dump(mode="json")["rejected"]
    assert read_curves(earlier.model_dump(mode="json")) == earlier
