"""Optimizers and learning-rate schedules of recipes, server optimizers, and optimizer state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import unwrap

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from fedvisage.recipe import Optimizer as Settings
from fedvisage.recipe import Schedule, ServerOptimizer, Training


@contextmanager
def sum_gradients(weights: Mapping[str, nn.Parameter]) -> Iterator[Mapping[str, Tensor]]:
    """Accumulate the gradients of weights inside the context, by name, before clipping and optimizer steps.

    Frozen weights receive no gradient, so their sums stay zero.
    """
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    trainable = {name: value for name, value in weights.items() if value.requires_grad}
    hooks = [value.register_hook(partial(_add, sums[name])) for name, value in trainable.items()]  # type: ignore[no-untyped-call]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()


def _add(total: Tensor, gradient: Tensor) -> None:
    total.add_(gradient)


@contextmanager
def hold(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Leave parameters unchanged by optimizer steps inside the context, which skip those without a gradient."""
    held = [value for value in parameters if value.requires_grad]
    for value in held:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in held:
            value.requires_grad_(True)


def server_step(
    settings: ServerOptimizer, present: Tensor, mean: Tensor, moments: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return one tensor's new weights, in the type of the current ones, and its moments in float64.

    S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
    Optimization", ICLR 2021, Algorithm 2 (FedOpt): Δ, the mean minus the current weights, takes the role of a gradient.
    With SGD at rate 1 and without momentum the step ends at the mean, which is federated averaging. Adam and Yogi do
    not correct the bias of their moments, and v starts at τ².
    """
    weights = present.double()
    delta = mean.double() - weights
    if settings.name == "sgd":
        if not settings.momentum:
            return (weights + settings.lr * delta).to(present.dtype), {}
        first = settings.momentum * moments.get("first", torch.zeros_like(delta)) + delta
        return (weights + settings.lr * first).to(present.dtype), {"first": first}
    square, tau = delta.square(), settings.tau
    first = settings.beta1 * moments.get("first", torch.zeros_like(delta)) + (1 - settings.beta1) * delta
    second_before = moments.get("second", torch.full_like(delta, tau**2))
    # Adam forgets v at a constant rate; Yogi moves it towards Δ² by (1 − β₂)Δ².
    if settings.name == "adam":
        second = settings.beta2 * second_before + (1 - settings.beta2) * square
    else:
        second = second_before - (1 - settings.beta2) * square * torch.sign(second_before - square)
    updated = weights + settings.lr * first / (second.sqrt() + tau)
    return updated.to(present.dtype), {"first": first, "second": second}


SMALL = 1 << 20
"""Number of weights up to which a CPU steps all tensors together; this holds intermediate values of all tensors."""


class _WithoutCompiler(Optimizer):
    """Torch's methods without the decorators that import its compiler: about 2 s and 70 MB in each process."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class Adam(_WithoutCompiler, optim.Adam):
    """Torch's Adam without its compiler."""

    step = torch.no_grad()(unwrap(optim.Adam.step))


class SGD(_WithoutCompiler, optim.SGD):
    """Torch's SGD without its compiler."""

    step = torch.no_grad()(unwrap(optim.SGD.step))


def build(parameters: Sequence[nn.Parameter], settings: Settings, factor: float = 1.0) -> Optimizer:
    """Build the optimizer of a recipe, with its learning rate scaled by the schedule's factor.

    Stepping all tensors of a small network together takes less time, and gives the same bytes.
    """
    rate, decay, fused = settings.lr * factor, settings.weight_decay, settings.fused
    # Torch decides for large networks and on other devices.
    together = True if are_small(parameters) and not fused else None
    if settings.name == "adam":
        return Adam(parameters, lr=rate, weight_decay=decay, fused=fused, foreach=together)
    return SGD(parameters, lr=rate, weight_decay=decay, momentum=settings.momentum, fused=fused, foreach=together)


def are_small(parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether parameters belong to a small network on a CPU."""
    return all(p.device.type == "cpu" for p in parameters) and sum(p.numel() for p in parameters) <= SMALL


def renewed(used: Optimizer | None, parameters: Sequence[nn.Parameter], settings: Settings, factor: float) -> Optimizer:
    """Return a used optimizer of these parameters and settings in the state of a new one, or else a new one."""
    own = [] if used is None else used.param_groups[0]["params"]
    if used is None or [*map(id, own)] != [*map(id, parameters)]:
        return build(parameters, settings, factor)
    for group in used.param_groups:
        group["lr"] = settings.lr * factor
    if isinstance(used, Adam) and used.state:
        torch._foreach_zero_([value for moments in used.state.values() for value in moments.values()])
    else:  # SGD creates its momentum in its first step
        used.state.clear()
    return used


def step(optimizer: Optimizer, clip_norm: float | None) -> None:
    """Take an optimizer step along the stored gradients, after clipping them to a norm if one is given."""
    if clip_norm is not None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip_norm)
    # A fused step needs gradients in the memory layout of their parameters.
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            if parameter.grad is not None:
                parameter.grad = _match_layout(parameter, parameter.grad)
    optimizer.step()


def rate_factor(schedule: Schedule, round_number: int, rounds: int) -> float:
    """Return the learning-rate factor of a round (from 1): linear warm-up, then the schedule."""
    if round_number <= schedule.warmup:
        return round_number / (schedule.warmup + 1)
    if schedule.name == "step":
        return max(schedule.floor, schedule.factor ** ((round_number - 1) // schedule.every))
    if schedule.name == "cosine":
        course = (round_number - 1 - schedule.warmup) / max(1, rounds - schedule.warmup)
        return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * course))
    return 1.0


def max_distance(training: Training) -> float | None:
    """Return roughly how far Adam can move a weight in a whole run; None if the number of steps is not set.

    An Adam step is about as long as the learning rate, regardless of the gradient.
    """
    if training.optimizer.name != "adam" or training.local.batches is None:
        return None
    factors = (rate_factor(training.schedule, number, training.rounds) for number in range(1, training.rounds + 1))
    return training.optimizer.lr * training.local.batches * sum(factors)


def state_of(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments, without copying them, as tensors named ``parameter.moment``."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value).detach()
        for index, moments in state.items()
        for name, value in moments.items()
        if value is not None
    }


def restore(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the moments returned by :func:`state_of` into an optimizer; its learning rate does not change."""
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = tensor.clone()
    state = optimizer.state_dict()
    optimizer.load_state_dict({**state, "state": moments})
    for parameter, parameter_state in optimizer.state.items():
        for name, value in parameter_state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                parameter_state[name] = _match_layout(parameter, value)


def _match_layout(parameter: Tensor, value: Tensor) -> Tensor:
    """Return values in the memory layout of a parameter, because a fused step ignores strides."""
    if value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, requires_grad=False).copy_(value)
