"""Gradients that are added up while something else trains the weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedvisage.nn.optimizers import sum_gradients


def test_sums_use_gradients_before_clipping() -> None:
    """The gradient of a loss that is linear in the weights is the loss's coefficients."""
    layer = nn.Linear(3, 1, bias=False)
    adam, given = torch.optim.Adam(layer.parameters(), lr=1.0), torch.arange(12.0).reshape(4, 3)
    with sum_gradients(dict(layer.named_parameters())) as sums:
        for row in given:
            adam.zero_grad()
            layer(row).backward()
            nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
            adam.step()
    np.testing.assert_allclose(sums["weight"].numpy()[0], given.sum(dim=0).numpy())


def test_hooks_are_removed_after_training_and_after_an_error() -> None:
    layer = nn.Linear(2, 1)
    try:
        with sum_gradients(dict(layer.named_parameters())) as sums:
            layer(torch.ones(2)).backward()
            raise FloatingPointError
    except FloatingPointError:
        pass
    before = sums["weight"].clone()
    layer(torch.ones(2)).backward()
    assert torch.equal(sums["weight"], before)
    assert torch.equal(before, torch.ones(1, 2))


def test_frozen_weights_add_up_to_zero() -> None:
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad_(requires_grad=False)
    with sum_gradients(dict(layer.named_parameters())) as sums:
        layer(torch.tensor([2.0, 3.0])).backward()
    assert sums["bias"].tolist() == [0.0]
    assert sums["weight"].tolist() == [[2.0, 3.0]]
