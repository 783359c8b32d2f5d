"""The entropy of a binary prediction against its definition, in float64."""

import numpy as np
import pytest
import torch
from tests.parity.gradients import value_and_gradients

from fedvisage.tasks.pad.adaptation import entropy


@pytest.mark.parametrize("seed", range(5))
def test_entropy_and_its_gradient(seed: int) -> None:
    """-p log p - (1 - p) log(1 - p); by the logit z its derivative is -z p (1 - p)."""
    z = np.random.default_rng(seed).normal(0, 4, 32)
    p = 1 / (1 + np.exp(-z))
    expected = np.mean(-p * np.log(p) - (1 - p) * np.log(1 - p))

    logits = torch.from_numpy(z).requires_grad_()
    value, (gradient,) = value_and_gradients(entropy(logits), logits)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, -z * p * (1 - p) / 32, rtol=1e-9, atol=1e-15)


def test_certain_predictions_have_no_entropy_and_no_infinities() -> None:
    logits = torch.tensor([-800.0, 800.0], requires_grad=True)
    value, (gradient,) = value_and_gradients(entropy(logits), logits)
    assert value == 0
    assert not gradient.any()
