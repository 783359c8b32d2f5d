"""Optimizers of a recipe: schedules, clipping, restored state, and sums of gradients."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedvisage.nn import optimizers
from fedvisage.nn.optimizers import sum_gradients
from fedvisage.recipe import Optimizer, Schedule


def problem() -> tuple[nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model, torch.randn(16, 4, generator=generator)


def train(model: nn.Linear, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizers.step(optimizer, None)


@pytest.mark.parametrize(
    "settings",
    [Optimizer(lr=0.1), Optimizer(name="sgd", lr=0.1, momentum=0.9), Optimizer(lr=0.1, weight_decay=0.1)],
)
def test_restored_optimizer_continues_as_if_uninterrupted(settings: Optimizer) -> None:
    model, inputs = problem()
    train(model, optimizers.build(list(model.parameters()), settings), inputs, 6)
    parts, _ = problem()
    first = optimizers.build(list(parts.parameters()), settings)
    train(parts, first, inputs, 3)
    second = optimizers.build(list(parts.parameters()), settings)
    optimizers.restore(second, optimizers.state_of(first))
    train(parts, second, inputs, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), parts.parameters(), strict=True))


def test_a_restored_optimizer_keeps_its_own_rate() -> None:
    model, inputs = problem()
    first = optimizers.build(list(model.parameters()), Optimizer(lr=0.1))
    train(model, first, inputs, 1)
    second = optimizers.build(list(model.parameters()), Optimizer(lr=0.1), factor=0.5)
    optimizers.restore(second, optimizers.state_of(first))
    assert second.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize(
    "settings",
    [
        Optimizer(lr=0.1),
        Optimizer(lr=0.1, fused=True),
        Optimizer(name="sgd", lr=0.1),
        Optimizer(name="sgd", lr=0.1, momentum=0.9),
    ],
)
def test_a_renewed_optimizer_steps_like_a_new_one(settings: Optimizer) -> None:
    (used, inputs), (model, _) = problem(), problem()
    parameters = list(used.parameters())
    first = optimizers.build(parameters, settings, factor=2.0)
    train(used, first, inputs, 3)
    used.load_state_dict(model.state_dict())
    second = optimizers.renewed(first, parameters, settings, factor=0.5)
    assert second is first
    train(used, second, inputs, 4)
    train(model, optimizers.build(list(model.parameters()), settings, factor=0.5), inputs, 4)
    assert all(torch.equal(a, b) for a, b in zip(used.parameters(), model.parameters(), strict=True))


def test_an_optimizer_of_other_parameters_is_not_renewed() -> None:
    (first, _), (second, _) = problem(), problem()
    used = optimizers.build(list(first.parameters()), Optimizer())
    other = optimizers.renewed(used, list(second.parameters()), Optimizer(), 1.0)
    assert other is not used
    assert other.param_groups[0]["params"][0] is second.weight


def test_the_state_is_not_copied_but_a_restored_optimizer_has_copies() -> None:
    model, inputs = problem()
    first, second = (optimizers.build(list(model.parameters()), Optimizer(lr=0.1)) for _ in range(2))
    train(model, first, inputs, 1)
    state = optimizers.state_of(first)
    before = {name: value.clone() for name, value in state.items()}
    optimizers.restore(second, state)
    train(model, second, inputs, 1)
    assert all(torch.equal(value, before[name]) for name, value in state.items())
    train(model, first, inputs, 1)
    assert not any(torch.equal(value, before[name]) for name, value in state.items())


def test_clipping_shortens_a_gradient_to_the_norm_and_leaves_short_ones_alone() -> None:
    for norm, length in ((1.0, 1.0), (100.0, 5.0)):
        weight = nn.Parameter(torch.zeros(2))
        weight.grad = torch.tensor([3.0, 4.0])
        optimizers.step(optimizers.build([weight], Optimizer(name="sgd", lr=1.0)), norm)
        assert weight.detach().norm().item() == pytest.approx(length, rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), [1.0] * 10),
        (Schedule(warmup=3), [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        (Schedule(name="step", every=2, factor=0.5, floor=0.2), [1, 1, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2]),
    ],
    ids=["constant", "warm-up", "step"],
)
def test_rate_follows_the_schedule(schedule: Schedule, expected: list[float]) -> None:
    actual = [optimizers.rate_factor(schedule, number, 10) for number in range(1, len(expected) + 1)]
    assert actual == pytest.approx(expected)


def test_the_cosine_starts_at_the_full_rate_and_falls_towards_the_floor() -> None:
    actual = [optimizers.rate_factor(Schedule(name="cosine", floor=0.2), number, 10) for number in range(1, 11)]
    assert actual[0] == 1.0
    assert actual == sorted(actual, reverse=True)
    assert actual[5] == pytest.approx(0.6)
    assert actual[-1] == pytest.approx(0.2 + 0.8 * (1 + math.cos(0.9 * math.pi)) / 2)


def weights_after_steps(settings: Optimizer, layout: torch.memory_format, *, parted: bool) -> torch.Tensor:
    """Take five steps of a convolution with gradients in another layout, and restore the state between the steps."""
    generator = torch.Generator().manual_seed(0)
    kernel = nn.Parameter(torch.randn(8, 6, 3, 3, generator=generator).contiguous(memory_format=layout))
    optimizer = optimizers.build([kernel], settings)
    for _ in range(5):
        if parted:
            state = {name: value.contiguous() for name, value in optimizers.state_of(optimizer).items()}
            optimizer = optimizers.build([kernel], settings)
            optimizers.restore(optimizer, state)
        kernel.grad = torch.randn(8, 6, 3, 3, generator=generator)
        if kernel.grad.stride() == kernel.stride():
            kernel.grad = kernel.grad.contiguous(memory_format=torch.channels_last)
        optimizers.step(optimizer, None)
    return kernel.detach()


@pytest.mark.parametrize(
    "settings",
    [Optimizer(lr=0.1), Optimizer(lr=0.1, weight_decay=0.1), Optimizer(name="sgd", momentum=0.9, weight_decay=0.1)],
)
def test_grouped_steps_of_a_small_network_give_the_same_bytes(
    settings: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small, inputs), (large, _) = problem(), problem()
    together = optimizers.build(list(small.parameters()), settings)
    monkeypatch.setattr(optimizers, "SMALL", 14)
    one_by_one = optimizers.build(list(large.parameters()), settings)
    assert [optimizer.defaults["foreach"] for optimizer in (together, one_by_one)] == [True, None]
    train(small, together, inputs, 5)
    train(large, one_by_one, inputs, 5)
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), large.parameters(), strict=True))


@pytest.mark.parametrize(
    ("ours", "torchs", "options"),
    [
        (optimizers.Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
        (optimizers.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_optimizers_without_the_compiler_give_the_bytes_of_torchs(
    ours: type[torch.optim.Optimizer], torchs: type[torch.optim.Optimizer], options: dict[str, float]
) -> None:
    (first, inputs), (second, _) = problem(), problem()
    for model, kind in ((first, ours), (second, torchs)):
        optimizer = kind(model.parameters(), **options)  # type: ignore[arg-type]
        train(model, optimizer, inputs, 3)
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, optimizer, inputs, 3)
        optimizer.zero_grad(set_to_none=False)
        assert all(not parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("parted", [False, True])
def test_fused_steps_equal_plain_steps_for_any_memory_layout(layout: torch.memory_format, parted: bool) -> None:
    """SGD's to the last bit, Adam's up to rounding."""
    sgd, adam = ({"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}, {"name": "adam"})
    for given, exact in ((sgd, True), (adam, False)):
        plain, fused = (
            weights_after_steps(Optimizer.model_validate({**given, "lr": 0.1, "fused": one}), layout, parted=parted)
            for one in (None, True)
        )
        torch.testing.assert_close(fused, plain, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def test_resolved_recipe_omits_unset_fused_steps() -> None:
    assert "fused" not in Optimizer().model_dump()
    assert Optimizer(fused=True).model_dump()["fused"] is True


# Sums of gradients.


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
    layer.bias.requires_grad_(False)
    with sum_gradients(dict(layer.named_parameters())) as sums:
        layer(torch.tensor([2.0, 3.0])).backward()
    assert sums["bias"].tolist() == [0.0]
    assert sums["weight"].tolist() == [[2.0, 3.0]]
