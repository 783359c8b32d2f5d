"""BatchNorm layers of a network: whose statistics they use, and how far a batch lies from the stored ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batchnorms(net: nn.Module) -> list[_BatchNorm]:
    """Return the network's BatchNorm layers."""
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def batch_statistics(net: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers normalise with the batch's own mean and variance; the stored ones stay as they are."""
    layers = batchnorms(net)
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracks) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracks


@contextmanager
def collected_statistics(net: nn.Module, keep: float) -> Iterator[None]:
    """Let BatchNorm layers normalise with the batch's own statistics, and average these over the batches.

    Afterwards the layers store a mixture: ``keep`` of what they had stored before, the rest of what was collected.
    """
    layers = batchnorms(net)
    before = [(layer.running_mean.clone(), layer.running_var.clone(), layer.momentum) for layer in layers]  # type: ignore[union-attr]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average
        layer.train()
    try:
        yield
    finally:
        for layer, (mean, variance, momentum) in zip(layers, before, strict=True):
            layer.eval()
            layer.momentum = momentum
            layer.running_mean.lerp_(mean, keep)  # type: ignore[union-attr]
            layer.running_var.lerp_(variance, keep)  # type: ignore[union-attr]


class ShiftMeter:
    """Measures, while it is open, how far each forward pass in evaluation mode lies from the stored statistics.

    A channel's shift is the squared 2-Wasserstein distance between two Gaussians, the batch's and the stored one, in
    units of the stored variance. A pass's shift is the mean over channels, then over layers.
    """

    def __init__(self, net: nn.Module) -> None:
        """Prepare to watch a network."""
        self._layers = batchnorms(net)
        self._seen: list[list[Tensor]] = [[] for _ in self._layers]
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> ShiftMeter:
        """Begin to watch."""
        for layer, seen in zip(self._layers, self._seen, strict=True):
            self._hooks.append(layer.register_forward_pre_hook(_watcher(seen)))
        return self

    def __exit__(self, *error: object) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()

    @property
    def shifts(self) -> list[float]:
        """The shifts of the passes so far, in order; none for a network without BatchNorm."""
        if not self._layers:
            return []
        return torch.stack([torch.stack(seen) for seen in self._seen]).mean(0).tolist()


def channel_shift(mean: Tensor, variance: Tensor, stored_mean: Tensor, stored_variance: Tensor, eps: float) -> Tensor:
    """Return ((μ − μ₀)² + (σ − σ₀)²) / (σ₀² + ε) for each channel."""
    apart = (mean - stored_mean).square() + (variance.sqrt() - stored_variance.sqrt()).square()
    return apart / (stored_variance + eps)


def _watcher(seen: list[Tensor]):  # type: ignore[no-untyped-def]  # torch's hook type
    def watch(layer: _BatchNorm, inputs: tuple[Tensor]) -> None:
        values = inputs[0].detach().float()
        axes = [axis for axis in range(values.ndim) if axis != 1]
        variance, mean = torch.var_mean(values, dim=axes, correction=0)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        seen.append(channel_shift(mean, variance, layer.running_mean, layer.running_var, layer.eps).mean())

    return watch
