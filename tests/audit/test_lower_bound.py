"""The empirical lower bound on ε lies below valid claims and above false ones."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from tests.federation.privacy.drawing import delta_of, draws_of
from torch import Tensor

from fedvisage.audit.claims import (
    CLAIM,
    Bound,
    ClaimSettings,
    ClaimTrial,
    epsilon_of,
    lower_bound,
    trials,
    trials_of_steps,
)
from fedvisage.federation.privacy.clustering import BudgetSplit
from fedvisage.federation.privacy.mechanisms import Budget, Draws, noise
from fedvisage.recipe.training import PersonPrivacy


@pytest.fixture(scope="module", params=[BudgetSplit(), BudgetSplit(relation="replace-one")], ids=["add", "replace"])
def bounds(request: pytest.FixtureRequest) -> dict[str, Bound]:
    claimed = ClaimSettings(how=request.param)
    return {trial.name: lower_bound(trial, trial.releases, draws_of(0)) for trial in trials(claimed)}


@pytest.mark.long
def test_private_mechanism_stays_below_its_claim(bounds: dict[str, Bound]) -> None:
    private = {name: bound for name, bound in bounds.items() if name.startswith("private")}
    assert len(private) == 2
    assert not any(bound.exceeds for bound in private.values())


def test_the_paper_s_mechanism_exceeds_its_claim_on_two_equal_groups(bounds: dict[str, Bound]) -> None:
    assert bounds["Algorithm 1 as printed"].epsilon > 3 * CLAIM.epsilon


def test_three_broken_mechanisms_are_refuted(bounds: dict[str, Bound]) -> None:
    broken = {name: bound for name, bound in bounds.items() if name.startswith("broken")}
    assert len(broken) == 3
    assert all(bound.exceeds for bound in broken.values()), broken


def gaussian(shift: float, sigma: float) -> ClaimTrial:
    def release_at(place: float) -> object:
        def release(draws: Draws) -> Tensor:
            return place + noise((2,), sigma, draws)

        return release

    return ClaimTrial("", Budget(1.0, 1e-5), release_at(0.0), release_at(shift))  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_bound_is_below_the_true_epsilon_of_gaussian_noise(sigma: float) -> None:
    """Find the true ε at δ = 1e-5 by bisection on the closed form; two coordinates each move by 1."""
    low, high = 0.0, 200.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, sigma, math.sqrt(2)) > 1e-5 else (low, middle)
    for seed in range(5):
        assert lower_bound(gaussian(1.0, sigma), 1000, draws_of(seed)).epsilon < high


def test_bound_is_close_to_the_limit_of_the_number_of_releases() -> None:
    """Clearly separated outputs: only the exact binomial bounds on 500 of 500 and 0 of 500 limit the figure."""
    bound = lower_bound(gaussian(100.0, 1.0), 1000, draws_of(0))
    assert bound.hits == (500, 0)
    assert bound.epsilon == pytest.approx(math.log(0.0005 ** (1 / 500) / (1 - 0.0005 ** (1 / 500))), abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(("chance", "other"), [(0.5, 0.2), (0.02, 0.02), (0.99, 0.4)])
def test_bound_is_wrong_at_most_at_its_confidence(chance: float, other: float) -> None:
    """Sum over all pairs of counts, weighted by their probability: P[bound > ln(P/P')] ≤ 1 − confidence, here 0.9."""
    trials, wrong = 60, 0.0
    for hits in range(trials + 1):
        for others in range(trials + 1):
            if epsilon_of(hits, others, trials, 0.0, 0.9) > max(0.0, math.log(chance / other)) + 1e-12:
                wrong += stats.binom.pmf(hits, trials, chance) * stats.binom.pmf(others, trials, other)
    assert wrong <= 0.1


def test_bound_accounts_for_delta() -> None:
    assert epsilon_of(500, 0, 500, 0.9) < epsilon_of(500, 0, 500, 0.0)
    assert epsilon_of(3, 0, 500, 0.5) == 0.0


def test_equal_outputs_give_no_bound() -> None:
    same = ClaimTrial("", Budget(1.0, 1e-5), lambda draws: torch.zeros(3), lambda draws: torch.zeros(3))
    assert lower_bound(same, 100, draws_of(0)).epsilon == 0.0


def test_claim_equal_to_the_bound_is_not_exceeded() -> None:
    bound = Bound(1.0, 1.0, (1, 1), 2)
    assert not bound.exceeds
    assert replace(bound, epsilon=1.01).exceeds


@pytest.mark.long
def test_steps_on_people_keep_their_claim_and_their_mistakes_do_not() -> None:
    settings = PersonPrivacy(clip=2.0, epsilon=8.0, delta=1e-5, rate=0.1)
    bounds = {trial.name: lower_bound(trial, trial.releases, draws_of(0)) for trial in trials_of_steps(settings)}
    exceeding = {name for name, bound in bounds.items() if bound.exceeds}
    assert exceeding == {"broken: nothing is clipped", "broken: everyone is drawn"}
    assert bounds.keys() - exceeding == {"steps, one person more"}
