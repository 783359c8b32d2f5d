"""The threshold for one camera from its genuine pictures."""

import numpy as np
import pytest
from benchmarks.real.calibration import RULES, Source, choose_without, errors_of
from scipy import stats

from fedvisage.metrics.calibration import K, find_outliers, student_quantile, threshold_for_camera


@pytest.mark.parametrize("degrees", [4, 9, 19, 100])
@pytest.mark.parametrize("probability", [0.9, 0.95, 0.98, 0.99])
def test_quantile_is_that_of_student(probability: float, degrees: int) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=0.02)


def test_new_pictures_of_the_camera_are_rejected_at_the_wished_rate_on_average() -> None:
    rng, rejected = np.random.default_rng(0), []
    for _ in range(4000):
        pictures = rng.normal(2, 1.5, 20)
        threshold = threshold_for_camera(pictures, 0.0, 0.02)
        rejected.append(stats.norm.cdf(threshold.of_pictures, 2, 1.5))
    assert np.mean(rejected) == pytest.approx(0.02, abs=0.003)


@pytest.mark.parametrize("count", [5, 20, 200])
def test_the_models_threshold_counts_as_a_fixed_number_of_pictures(count: int) -> None:
    pictures = np.random.default_rng(1).normal(2, 1, count)
    ends = [threshold_for_camera(pictures, own, 0.02) for own in (-3.0, 3.0)]
    assert (ends[1].value - ends[0].value) / 6 == pytest.approx(K / (count + K))
    assert ends[0].of_pictures == ends[1].of_pictures


def test_outliers_are_attacks_and_not_ordinary_pictures() -> None:
    rng = np.random.default_rng(2)
    genuine = rng.normal(3, 1, 20)
    assert find_outliers(genuine).tolist() == []
    assert find_outliers(np.concatenate([genuine, [-6.0, -7.0]])).tolist() == [20, 21]
    assert find_outliers(np.full(6, 2.0)).tolist() == []


def sites_of(count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return scores and labels of sites that differ in level: 60 genuine pictures, then 60 attacks."""
    rng = np.random.default_rng(3)
    labels = np.repeat([1, 0], 60)
    return {f"site {n}": (rng.normal(n, 1, 120) + 3 * labels, labels) for n in range(count)}


@pytest.mark.parametrize("source", ["all", "first-half"])
def test_benchmark_evaluates_on_pictures_outside_the_calibration(source: Source) -> None:
    sites = sites_of(4)
    errors = errors_of(sites, "site 0", 0.02, 20, 5, source)
    rates = errors["empirical quantile"][:, 0]
    evaluated = 40 if source == "all" else 30
    assert rates * evaluated == pytest.approx(np.round(rates * evaluated))
    assert set(errors) == set(RULES)


def test_the_other_sites_choose_a_rule_without_the_evaluated_site() -> None:
    sites = sites_of(4)
    choice = choose_without("site 0", sites, 0.02, 20, 5, "all")
    scores, labels = sites["site 0"]
    assert choose_without("site 0", {**sites, "site 0": (-scores, labels)}, 0.02, 20, 5, "all") == choice
