"""The joint cost of releases: the sum, the tight figure and the budget's limit."""

import json
import math
from dataclasses import asdict, replace

import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, stats
from tests.federation.privacy.drawing import delta_of
from tests.refusals import failed

from fedvisage.base.errors import RunFailed
from fedvisage.federation.privacy.accountant import BudgetSpent, Charge, joint_cost, new_charges, tight_epsilon
from fedvisage.federation.privacy.mechanisms import Budget

DELTA = 1e-5
RELEASE = Charge("round 1, sums", "gaussian", 1.0, DELTA, "add-remove", sensitivity=2.0, sigma=8.0)
CHOICE = Charge("round 1, selection", "selection", 0.2, 0.0, "add-remove", sensitivity=1.0, sigma=0.0)


def gaussians(number: int) -> list[Charge]:
    return [replace(RELEASE, release=f"round {one}, sums") for one in range(1, number + 1)]


@pytest.mark.parametrize("number", [1, 4, 10])
def test_k_gaussian_releases_cost_as_much_as_one_with_sigma_over_root_k(number: int) -> None:
    actual = tight_epsilon(gaussians(number), DELTA)
    assert delta_of(actual, 8.0 / math.sqrt(number), 2.0) == pytest.approx(DELTA, rel=1e-6)


def test_the_tight_figure_of_gaussians_is_that_of_composed_loss_distributions() -> None:
    composed = privacy_loss_distribution.from_gaussian_mechanism(8.0, 2.0).self_compose(10)
    assert tight_epsilon(gaussians(10), DELTA) == pytest.approx(composed.get_epsilon_for_delta(DELTA), rel=1e-3)


def test_releases_of_different_sizes_add_their_precisions() -> None:
    charges = [RELEASE, replace(RELEASE, release="other", sensitivity=1.0, sigma=3.0)]
    one = 1 / math.sqrt((2 / 8) ** 2 + (1 / 3) ** 2)
    assert delta_of(tight_epsilon(charges, DELTA), one, 1.0) == pytest.approx(DELTA, rel=1e-6)


def test_several_releases_in_one_charge_cost_as_much_as_in_several() -> None:
    assert tight_epsilon([replace(RELEASE, times=4)], DELTA) == pytest.approx(tight_epsilon(gaussians(4), DELTA))


def test_the_order_of_charges_does_not_change_the_tight_figure() -> None:
    charges = [RELEASE, CHOICE, replace(CHOICE, release="round 2, selection", epsilon=0.3)]
    assert tight_epsilon(charges[::-1], DELTA) == tight_epsilon(charges, DELTA)
    assert tight_epsilon([*charges, replace(CHOICE, release="round 3, selection")], DELTA) > tight_epsilon(
        charges, DELTA
    )


def test_cost_of_selections_equals_binomial_formula_of_randomised_response() -> None:
    times, epsilon = 20, 0.2
    wins = stats.binom(times, math.exp(epsilon) / (1 + math.exp(epsilon)))

    def delta(claim: float) -> float:
        losses = [(2 * won - times) * epsilon for won in range(times + 1)]
        return sum(float(wins.pmf(won)) * max(0.0, -math.expm1(claim - loss)) for won, loss in enumerate(losses))

    expected = optimize.brentq(lambda claim: delta(claim) - DELTA, 0, times * epsilon)
    actual = tight_epsilon([replace(CHOICE, epsilon=times * epsilon, times=times)], DELTA)
    assert actual == pytest.approx(expected, abs=times * 1e-4)
    assert actual < times * epsilon


def test_selections_and_gaussians_together_cost_less_than_their_sum_and_more_than_either() -> None:
    rounds = [replace(one, release=f"round {number}") for number in range(10) for one in (CHOICE, RELEASE)]
    names = [replace(one, release=f"{one.release}, {one.mechanism}") for one in rounds]
    actual = joint_cost(names, DELTA)
    assert actual.epsilon == pytest.approx(12.0)
    assert actual.delta == pytest.approx(10 * DELTA)
    parts = [
        tight_epsilon([one for one in names if one.mechanism == kind], DELTA) for kind in ("gaussian", "selection")
    ]
    assert max(parts) < actual.tight_epsilon < sum(parts)


@pytest.mark.parametrize("sigma", [5e-5, 1e-8])
def test_almost_no_noise_has_a_finite_cost(sigma: float) -> None:
    """Loss distributions reach to 2·10⁸ and further here, of which steps of 10⁻⁴ would need terabytes."""
    loud = Charge("r", "gaussian", 1.0, 1e-6, "person", 1.0, sigma)
    chosen = Charge("s", "selection", 0.2, 0.0, "person", 1.0, 0.0)
    alone = tight_epsilon([loud], 1e-5)
    assert alone <= tight_epsilon([loud, chosen], 1e-5) <= alone + 0.2


def test_no_charges_cost_nothing() -> None:
    assert joint_cost([], DELTA).tight_epsilon == 0.0
    assert joint_cost([], DELTA).epsilon == 0.0


def test_guarantees_of_different_kinds_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="neighbouring relations"):
        joint_cost([RELEASE, replace(RELEASE, release="other", relation="paper")], DELTA)


def test_charge_is_unchanged_after_storage() -> None:
    assert Charge(**json.loads(json.dumps(asdict(RELEASE)))) == RELEASE


def test_text_of_a_charge_names_the_protected_unit() -> None:
    assert "one class centre added or removed" in RELEASE.guarantee()
    assert "as the paper counts it, not end to end" in replace(RELEASE, relation="paper").guarantee()


def test_recorded_charge_is_not_due_again() -> None:
    total = Budget(1.0, DELTA)
    assert new_charges([], [RELEASE], total, "sum") == (RELEASE,)
    assert new_charges([RELEASE], [RELEASE], total, "sum") == ()


def test_release_at_another_cost_is_refused() -> None:
    with failed(RunFailed, "round 1, sums", "cost"):
        new_charges([RELEASE], [replace(RELEASE, sigma=4.0)], Budget(9.0, 0.1), "sum")


def test_a_run_stops_at_its_budget_and_not_before() -> None:
    total, written = Budget(1.0, 10 * DELTA), list[Charge]()
    for one in gaussians(10):
        written += new_charges(written, [replace(one, epsilon=0.1)], total, "sum")
    with failed(BudgetSpent, "round 11", "ε 1.1", "ε 1"):
        new_charges(written, [replace(RELEASE, release="round 11", epsilon=0.1)], total, "sum")


def test_the_sum_of_delta_is_bounded_too() -> None:
    with pytest.raises(BudgetSpent):
        new_charges([RELEASE], [replace(RELEASE, release="round 2")], Budget(9.0, DELTA), "sum")


def test_tight_count_permits_more_releases() -> None:
    charges = gaussians(10)
    total = Budget(tight_epsilon(charges, DELTA), DELTA)
    assert new_charges(charges[:9], charges[9:], total, "tight") == (charges[9],)
    with pytest.raises(BudgetSpent):
        new_charges(charges, [replace(RELEASE, release="one more")], total, "tight")
    with pytest.raises(BudgetSpent):
        new_charges(charges[:9], charges[9:], total, "sum")
