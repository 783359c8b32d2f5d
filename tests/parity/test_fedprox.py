"""FedProx's Eq. 2 against a few lines of NumPy, in float64."""

import numpy as np
import torch
from tests.parity.gradients import value_and_gradients

from fedvisage.nn.losses.proximal import proximal

HERE, THERE = ([np.random.default_rng(seed).normal(size=shape) for shape in ((3, 4), (5,))] for seed in (0, 1))


def test_the_proximal_term_is_half_the_squared_distance_and_its_gradient_the_distance() -> None:
    weights = [torch.tensor(values, requires_grad=True) for values in HERE]
    loss = proximal(weights, [torch.tensor(values) for values in THERE])
    value, gradients = value_and_gradients(loss, *weights)
    distance = np.concatenate([(here - there).ravel() for here, there in zip(HERE, THERE, strict=True)])
    np.testing.assert_allclose(value, 0.5 * np.linalg.norm(distance) ** 2, rtol=1e-12)
    np.testing.assert_allclose(np.concatenate([gradient.ravel() for gradient in gradients]), distance, rtol=1e-12)


def test_proximal_term_is_zero_at_the_global_weights() -> None:
    weights = [torch.tensor(values) for values in HERE]
    assert proximal(weights, weights) == 0
