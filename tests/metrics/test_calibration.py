"""The threshold for one camera from its genuine pictures."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.real.calibration import CANDIDATES, Site, choose, errors_of, mean_over_kinds, read_sites
from scipy import optimize, stats

from fedvisage.metrics.calibration import (
    K,
    expected_bpcer,
    find_outliers,
    student_quantile,
    threshold_for_camera,
)
from fedvisage.metrics.threshold import OF_FURTHER, Estimate, Threshold


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


@pytest.mark.parametrize(("count", "threshold"), [(5, -0.5), (20, -0.5), (20, 0.5), (100, 1.5)])
def test_interval_of_the_expected_bpcer_is_that_of_a_noncentral_t_and_of_the_counted_share(
    count: int, threshold: float
) -> None:
    pictures = np.random.default_rng(4).normal(2, 1.5, count)
    scaled = np.sqrt(count) * (pictures.mean() - threshold) / pictures.std(ddof=1)
    expected = expected_bpcer(pictures, threshold)

    def camera_bpcer(beyond: float) -> float:
        """Return the BPCER of a camera that gives this t, or one beyond it, in this share of all draws of pictures."""
        bpcer = optimize.brentq(
            lambda rate: stats.nct.sf(scaled, count - 1, -stats.norm.ppf(rate) * np.sqrt(count)) - beyond, 1e-6, 0.999
        )
        return float(bpcer)

    counted = stats.binomtest(int((pictures < threshold).sum()), count).proportion_ci(method="wilson")
    assert expected.low == pytest.approx(min(camera_bpcer(0.975), counted.low), abs=0.01)
    assert expected.high == pytest.approx(max(camera_bpcer(0.025), counted.high), abs=0.01)
    width = pictures.std(ddof=1) * np.sqrt(1 + 1 / count)
    assert expected.rate == pytest.approx(stats.t.cdf((threshold - pictures.mean()) / width, count - 1), abs=0.01)


def test_neighbouring_pictures_do_not_narrow_the_interval_of_further_ones() -> None:
    """Six frames of one scene are closer to each other than other pictures of the camera."""
    pictures = np.linspace(2.0, 2.1, 6)
    threshold = threshold_for_camera(pictures, 0.0, 0.02)
    assert threshold.value > 0
    assert expected_bpcer(pictures, threshold.value).high == pytest.approx(1.96**2 / (6 + 1.96**2), abs=1e-3)


@pytest.mark.parametrize(("rate", "text"), [(0.0, "0%"), (1e-9, "<1%"), (0.004, "<1%"), (0.005, "1%"), (0.125, "13%")])
def test_small_rate_of_one_camera_is_not_printed_as_zero(rate: float, text: str) -> None:
    threshold = Threshold(0.0, "rule", None, None, {OF_FURTHER: Estimate(rate, 0.0, 0.24)})
    assert threshold.operating_point == f"rule: further pictures: {text} expected (95%: 0% to 24%)"


def test_outliers_are_attacks_and_not_ordinary_pictures() -> None:
    rng = np.random.default_rng(2)
    genuine = rng.normal(3, 1, 20)
    assert find_outliers(genuine).tolist() == []
    assert find_outliers(np.concatenate([genuine, [-6.0, -7.0]])).tolist() == [20, 21]
    assert find_outliers(np.full(6, 2.0)).tolist() == []


def sites_of(count: int) -> dict[str, Site]:
    """Return bursts of sites that differ in level: 40 genuine ones, and 40 of attacks."""
    rng = np.random.default_rng(3)
    return {f"site {n}": ([*rng.normal(n + 3, 1, (40, 3))], [*rng.normal(n, 1, (40, 3))]) for n in range(count)}


def test_benchmark_evaluates_on_bursts_outside_the_calibration() -> None:
    errors = errors_of("site 0", sites_of(1)["site 0"], 20, 5)
    assert set(errors) == {"score 0.5", *CANDIDATES}
    for rates in errors.values():
        evaluated = np.array([60, 120, 20, 40])
        assert rates * evaluated == pytest.approx(np.round(rates * evaluated))
    assert errors_of("site 0", sites_of(1)["site 0"], 31, 5) == {}


def test_choice_has_the_lowest_mean_error_over_kinds() -> None:
    errors = {name: errors_of(name, site, 20, 5) for name, site in sites_of(3).items()}
    hters = {rule: np.mean([of_site[rule][:, :2].mean() for of_site in errors.values()]) for rule in CANDIDATES}
    assert hters[choose(errors)] == pytest.approx(min(hters.values()))


def test_sites_of_one_kind_count_once() -> None:
    assert mean_over_kinds({"apfol": 0.1, "wolf": 0.3, "imironica": 0.6}) == pytest.approx((0.2 + 0.6) / 2)


def test_scores_are_read_by_burst_without_words(tmp_path: Path) -> None:
    rows = ["site,label,burst,place,score", "a,1,0,0,1.5", "a,0,0,0,-2", "a,1,1,0,no face", "a,1,0,1,2.5"]
    (tmp_path / "bursts.csv").write_text("\n".join(rows))
    genuine, attacks = read_sites(tmp_path / "bursts.csv")["a"]
    assert [burst.tolist() for burst in genuine] == [[1.5, 2.5]]
    assert [burst.tolist() for burst in attacks] == [[-2.0]]
