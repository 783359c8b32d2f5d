"""The Gaussian mechanism: its σ against a second way to compute it, and the distribution of its noise."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from tests.federation.privacy.drawing import delta_of, draws_of
from tests.refusals import refused

from fedvisage.federation.privacy.mechanisms import (
    Budget,
    SystemDraws,
    classic_standard_deviation,
    noise,
    standard_deviation,
)

BUDGETS = [Budget(0.1, 1e-6), Budget(1.0, 5.9e-5), Budget(8.0, 1e-5), Budget(16.0, 1e-3)]


def integrated_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """∫ max(p(x) − e^ε q(x), 0) dx of the two output densities, N(Δ, σ²) and N(0, σ²), by quadrature."""
    threshold = sensitivity / 2 + epsilon * sigma**2 / sensitivity  # to its right the loss is above ε

    def excess(x: float) -> float:
        present, absent = stats.norm.pdf(x, sensitivity, sigma), stats.norm.pdf(x, 0, sigma)
        return float(present - math.exp(epsilon) * absent)

    return float(integrate.quad(excess, threshold, threshold + 12 * sigma, epsabs=1e-16, epsrel=1e-10, limit=200)[0])


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("sensitivity", [0.0038, 1.0, 1.35])
def test_noise_is_exactly_sufficient_by_numerical_integration(budget: Budget, sensitivity: float) -> None:
    sigma = standard_deviation(budget, sensitivity)
    assert integrated_delta(budget.epsilon, sigma, sensitivity) == pytest.approx(budget.delta, rel=1e-6)
    assert integrated_delta(budget.epsilon, 0.99 * sigma, sensitivity) > budget.delta


@pytest.mark.parametrize("budget", BUDGETS)
def test_delta_of_is_the_integral(budget: Budget) -> None:
    actual = delta_of(budget.epsilon, 1.7, 2.0)
    assert actual == pytest.approx(integrated_delta(budget.epsilon, 1.7, 2.0), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(10.0, 2.3e-5), (16.0, 3.4e-4)])
def test_classic_formula_breaks_its_promise_at_a_large_epsilon(epsilon: float, delta: float) -> None:
    sigma = classic_standard_deviation(Budget(epsilon, 1e-5), 1.0)
    assert integrated_delta(epsilon, sigma, 1.0) == pytest.approx(delta, rel=0.02)


def test_classic_formula_adds_more_noise_at_epsilon_one() -> None:
    budget = Budget(1.0, 1e-5)
    assert classic_standard_deviation(budget, 1.0) / standard_deviation(budget, 1.0) == pytest.approx(1.30, abs=0.01)


@pytest.fixture(scope="module", params=["derived", "system"])
def draws(request: pytest.FixtureRequest) -> np.ndarray:
    """A million draws and some; those of the system differ each time, so a test of them may fail once in a million."""
    return noise((2**20,), 0.7, draws_of(1) if request.param == "derived" else SystemDraws()).numpy()


def test_noise_is_normal_with_its_scale(draws: np.ndarray) -> None:
    edges = 0.7 * stats.norm.ppf(np.linspace(0, 1, 201))
    assert stats.kstest(draws, "norm", args=(0, 0.7)).pvalue > 1e-6
    assert stats.chisquare(np.histogram(draws, edges)[0]).pvalue > 1e-6
    wrong = draws * 1.02  # both tests notice a slightly wrong scale
    assert stats.kstest(wrong, "norm", args=(0, 0.7)).pvalue < 1e-8
    assert stats.chisquare(np.histogram(wrong, edges)[0]).pvalue < 1e-8


def test_system_entropy_noise_never_repeats_and_ignores_seeds() -> None:
    torch.manual_seed(0)
    first = SystemDraws().normal((64,))
    torch.manual_seed(0)
    assert not bool((SystemDraws().normal((64,)) == first).any())


def test_a_seed_of_torch_has_too_few_bits_for_a_secret() -> None:
    """Why deployment noise does not come from a torch generator: only 32 bits of a seed count."""
    assert torch.equal(draws_of(7).normal((9,)), draws_of(7 + (5 << 32)).normal((9,)))


def test_uniform_system_draws_are_even_between_0_and_1() -> None:
    actual = SystemDraws().uniform(2**20).numpy()
    assert 0 < actual.min() < actual.max() < 1
    assert stats.kstest(actual, "uniform").pvalue > 1e-6


def test_noise_uses_only_the_given_generator() -> None:
    first = noise((2, 3), 1.0, draws_of(5))
    torch.manual_seed(0)
    assert torch.equal(first, noise((2, 3), 1.0, draws_of(5)))
    assert first.dtype == torch.float64


@pytest.mark.parametrize(
    ("place", "values", "call"),
    [
        ("epsilon", (0.0, -1.0, math.inf, math.nan), lambda value: Budget(value, 1e-5)),
        ("delta", (0.0, 1.0, -0.1, 1.5, math.nan), lambda value: Budget(1.0, value)),
        ("sensitivity", (0.0, -1.0, math.inf, math.nan), lambda value: standard_deviation(Budget(1.0, 1e-5), value)),
        ("sigma", (0.0, -1.0, math.inf, math.nan), lambda value: noise((1,), value, draws_of(0))),
    ],
    ids=["epsilon", "delta", "sensitivity", "sigma"],
)
def test_values_without_a_guarantee_are_refused(
    place: str, values: Sequence[float], call: Callable[[float], object]
) -> None:
    for value in values:
        with refused(place, str(value), *(["clip"] if place == "sensitivity" else [])):
            call(value)
