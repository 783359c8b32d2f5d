"""Partial training: selected rows of a large parameter train like separate parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedvisage.nn.partial import PartialRows, Sampler

STEPS = ([0, 3], [3, 4], [1], [0, 1, 4], [3])
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05},
}
Trained = tuple[nn.Parameter, torch.optim.Optimizer]


def trained_by_rows(make: Any, values: torch.Tensor, targets: torch.Tensor) -> Trained:
    whole, other = nn.Parameter(values.clone()), nn.Parameter(torch.ones(3))
    optimizer = make([other, whole])
    rows = PartialRows(optimizer, whole)
    for chosen in STEPS:
        taken = rows.take(torch.tensor(chosen))
        optimizer.zero_grad(set_to_none=True)
        ((taken - targets[chosen]).square().sum() + other.sum()).backward()
        optimizer.step()
    rows.finish()
    return whole, optimizer


@pytest.mark.parametrize("name", SETTINGS)
def test_sgd_moves_only_sampled_rows(name: str) -> None:
    rng, settings = np.random.default_rng(0), SETTINGS[name]
    values, targets = rng.normal(size=(6, 2)), rng.normal(size=(6, 2))
    whole, optimizer = trained_by_rows(
        lambda parameters: torch.optim.SGD(parameters, **settings), torch.tensor(values), torch.tensor(targets)
    )
    expected, speed = values.copy(), np.zeros_like(values)
    for chosen in STEPS:
        for row in chosen:
            gradient = 2 * (expected[row] - targets[row]) + settings.get("weight_decay", 0) * expected[row]
            speed[row] = settings.get("momentum", 0) * speed[row] + gradient
            expected[row] -= settings["lr"] * speed[row]
    assert np.allclose(whole.detach().numpy(), expected)
    assert np.array_equal(whole.detach().numpy()[[2, 5]], values[[2, 5]])
    if "momentum" in settings:
        assert np.allclose(optimizer.state[whole]["momentum_buffer"].numpy(), speed)


def test_large_parameter_is_restored_afterwards() -> None:
    values = torch.arange(12.0).reshape(6, 2)
    whole, optimizer = trained_by_rows(lambda parameters: torch.optim.Adam(parameters, lr=0.1), values, values + 1)
    assert optimizer.param_groups[0]["params"][1] is whole
    saved = optimizer.state_dict()["state"]
    assert saved[1]["exp_avg"].shape == (6, 2)
    assert int(saved[1]["step"]) == len(STEPS)


def test_sampled_classes_have_matching_centres_and_labels() -> None:
    own, public = nn.Parameter(torch.arange(4.0)[:, None]), nn.Parameter(torch.arange(4.0, 12.0)[:, None])
    sampler = Sampler(torch.optim.SGD([own, public], lr=1.0), [own, public], 6, np.random.default_rng(0))
    labels = torch.tensor([9, 2, 9])
    actual = sampler.of(labels)
    assert actual.chosen is not None
    assert len(actual.chosen) == 6
    assert actual.centres[:, 0].tolist() == actual.chosen.tolist()
    assert actual.centres[actual.labels, 0].tolist() == [9.0, 2.0, 9.0]
    assert sampler.of(labels) is actual, "one draw serves all losses of a batch"
    first = actual.of_first(4)
    assert first.centres[:, 0].tolist() == [number for number in actual.chosen.tolist() if number < 4]
    assert sampler.of(torch.tensor([0])) is not actual
