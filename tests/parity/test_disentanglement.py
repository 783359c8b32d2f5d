"""FedGPAD's losses against a few lines of NumPy, values and gradients, in float64."""

import numpy as np
import pytest
import torch
from tests.parity.gradients import value_and_gradients

from fedvisage.nn.losses.disentanglement import Form, difference, squared_error

INVARIANT, SPECIFIC = (np.random.default_rng(seed).normal(size=(5, 7)) for seed in (0, 1))


def gradients(form: Form) -> tuple[float, np.ndarray, np.ndarray]:
    first, second = (torch.tensor(values, requires_grad=True) for values in (INVARIANT, SPECIFIC))
    value, (by_first, by_second) = value_and_gradients(difference(first, second, form), first, second)
    return value, by_first, by_second


def test_printed_difference_is_the_squared_frobenius_norm_over_the_batch() -> None:
    value, by_invariant, by_specific = gradients("printed")
    product = np.array([[sum(INVARIANT[:, i] * SPECIFIC[:, j]) for j in range(7)] for i in range(7)])
    assert value == pytest.approx((product**2).sum(), rel=1e-12)
    np.testing.assert_allclose(by_invariant, 2 * SPECIFIC @ product.T, rtol=1e-10)
    np.testing.assert_allclose(by_specific, 2 * INVARIANT @ product, rtol=1e-10)


def test_mean_difference_compares_directions_and_no_gradient_flows_through_lengths() -> None:
    value, by_invariant, _ = gradients("mean")
    lengths = [np.sqrt((values**2).sum(axis=1, keepdims=True)) + 1e-6 for values in (INVARIANT, SPECIFIC)]
    first, second = INVARIANT / lengths[0], SPECIFIC / lengths[1]
    assert value == pytest.approx(((first.T @ second) ** 2).mean(), rel=1e-12)
    np.testing.assert_allclose(by_invariant, 2 * second @ (second.T @ first) / lengths[0] / 49, rtol=1e-10)


def test_difference_per_image_is_the_square_of_the_product_of_its_features() -> None:
    first, second = (torch.tensor(values, requires_grad=True) for values in (INVARIANT, SPECIFIC))
    value, (by_first, by_second) = value_and_gradients(difference(first, second, "printed", "image"), first, second)
    products = np.array([sum(INVARIANT[i] * SPECIFIC[i]) for i in range(5)])
    assert value == pytest.approx((products**2).sum(), rel=1e-12)
    np.testing.assert_allclose(by_first, 2 * products[:, None] * SPECIFIC, rtol=1e-10)
    np.testing.assert_allclose(by_second, 2 * products[:, None] * INVARIANT, rtol=1e-10)
    cosines = products / np.linalg.norm(INVARIANT, axis=1) / np.linalg.norm(SPECIFIC, axis=1)
    mean = difference(first.detach(), second.detach(), "mean", "image")
    assert float(mean) == pytest.approx((cosines**2).mean(), rel=1e-5)


def test_orthogonal_subspaces_have_no_difference_loss() -> None:
    batch = torch.zeros(4, 6, dtype=torch.float64)
    other = batch.clone()
    batch[:2, :3], other[2:, 3:] = 1.0, 1.0
    assert float(difference(batch, other, "printed")) == 0.0


@pytest.mark.parametrize(("form", "share"), [("printed", 1), ("mean", 35)])
def test_squared_error_is_the_sum_or_the_mean_of_equations_5_and_6(form: Form, share: int) -> None:
    actual = torch.tensor(INVARIANT, requires_grad=True)
    value, (gradient,) = value_and_gradients(squared_error(actual, torch.tensor(SPECIFIC), form), actual)
    assert value == pytest.approx(((INVARIANT - SPECIFIC) ** 2).sum() / share, rel=1e-12)
    np.testing.assert_allclose(gradient, 2 * (INVARIANT - SPECIFIC) / share, rtol=1e-12)
