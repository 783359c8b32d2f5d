"""BatchNorm layers of a network: separation from the rest, choice of statistics, and distance of a batch from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# Separation of a network into its normalisation layers and the rest, for methods that keep them in different places.


class LayerReference(nn.Module):
    """Calls a layer that another module owns, from the position where the layer was.

    torch does not see the layer here, so body and layers must be moved or copied together, like the parts of one
    network. Only the switch between training and evaluation mode reaches the layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        """Store the layer in a tuple, so that torch does not register it."""
        super().__init__()
        self._layer = (layer,)

    def forward(self, values: Tensor) -> Tensor:
        """Call the layer."""
        outputs: Tensor = self._layer[0](values)
        return outputs

    def train(self, mode: bool = True) -> LayerReference:
        """Switch the mode of the layer as well, because it uses batch statistics in training mode only."""
        self._layer[0].train(mode)
        return super().train(mode)


def extract_norms(network: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """Separate the normalisation layers from a network; return the network, which still uses them, and the layers.

    The layers are in network order: BatchNorm layers, or layer and group norms if there are none. Nothing is copied or
    drawn, so body and layers together compute the same numbers as before.
    """
    layers = _layers(network, (_BatchNorm,)) or _layers(network, (nn.LayerNorm, nn.GroupNorm))
    for name, layer in layers:
        network.set_submodule(name, LayerReference(layer))
    return network, nn.ModuleList(layer for _, layer in layers)


def _layers(network: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in network.named_modules() if isinstance(module, kinds)]


def batchnorms(net: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers of a network."""
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


def hold_statistics(net: nn.Module) -> None:
    """Make BatchNorm layers of a network in training use their stored statistics without updating them."""
    for layer in batchnorms(net):
        layer.eval()


@contextmanager
def batch_statistics(net: nn.Module) -> Iterator[None]:
    """Make BatchNorm layers use the mean and variance of the batch; the stored statistics do not change."""
    layers = batchnorms(net)
    previous = [(layer.training, layer.track_running_stats) for layer in layers]
    for layer in layers:
        layer.training, layer.track_running_stats = True, False
    try:
        yield
    finally:
        for layer, (training, tracks) in zip(layers, previous, strict=True):
            layer.training, layer.track_running_stats = training, tracks


@contextmanager
def collect_statistics(net: nn.Module, keep: float) -> Iterator[None]:
    """Make BatchNorm layers use batch statistics, and average these over the batches.

    Afterwards the layers store a mixture: a share ``keep`` of their previous statistics, and the rest from the batches.
    """
    layers = batchnorms(net)
    previous = [([stored.clone() for stored in _stored_statistics(layer)], layer.momentum) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average
        layer.train()
    try:
        yield
    finally:
        for layer, (old, momentum) in zip(layers, previous, strict=True):
            layer.eval()
            layer.momentum = momentum
            for stored, kept in zip(_stored_statistics(layer), old, strict=True):
                stored.lerp_(kept, keep)


@dataclass(frozen=True)
class PooledStatistics:
    """Mean, (uncorrected) variance and weight of a group of values, per channel in float64."""

    mean: Tensor
    variance: Tensor
    weight: float


def pool_statistics(parts: Iterable[PooledStatistics]) -> PooledStatistics:
    """Return the statistics of all groups together, from the variance within groups and between their means."""
    groups = list(parts)
    weights = torch.tensor([part.weight for part in groups], dtype=torch.float64, device=groups[0].mean.device)[:, None]
    means, variances = (torch.stack([getattr(part, name) for part in groups]) for name in ("mean", "variance"))
    total = weights.sum()
    mean = (weights * means).sum(0) / total
    variance = (weights * (variances + (means - mean).square())).sum(0) / total
    return PooledStatistics(mean, variance, float(total))


class LayerReached(Exception):
    """Ends a forward pass at the layer of interest."""


def call_counts(net: nn.Module, forward: Callable[[], object]) -> dict[str, int]:
    """Return the BatchNorm layers with statistics that a forward pass calls, in call order, with their call counts."""
    seen: Counter[str] = Counter()

    def count(name: str, *_: object) -> None:
        seen[name] += 1

    named = [
        (name, module)
        for name, module in net.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]
    hooks = [module.register_forward_pre_hook(partial(count, name)) for name, module in named]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return dict(seen)


def input_statistics(layer: nn.Module, times: int, forwards: Iterable[Callable[[], object]]) -> PooledStatistics:
    """Return the statistics of the input of a layer over forward passes that call it `times` times each.

    Layers behind the last call are not computed. Values from all calls have equal weight.
    """
    parts: list[PooledStatistics] = []
    left = times

    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal left
        values = inputs[0].detach().float()
        mean, variance = moments(values)
        parts.append(PooledStatistics(mean.double(), variance.double(), values.numel() / values.shape[1]))
        left -= 1
        if not left:
            # Stop at the last call, so that later layers are not computed.
            raise LayerReached

    hook = layer.register_forward_pre_hook(watch)
    try:
        for forward in forwards:
            left = times
            try:
                forward()
            except LayerReached:
                continue
    finally:
        hook.remove()
    return pool_statistics(parts)


class StatisticsMeter:
    """Records, while open, the input mean and variance of BatchNorm layers in each forward pass."""

    def __init__(self, net: nn.Module) -> None:
        """Prepare to record a network in evaluation mode."""
        self._layers = batchnorms(net)
        self._seen: list[list[Tensor]] = [[] for _ in self._layers]
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> StatisticsMeter:
        """Start recording."""
        for layer, seen in zip(self._layers, self._seen, strict=True):
            self._hooks.append(layer.register_forward_pre_hook(partial(_record_moments, seen)))
        return self

    def __exit__(self, *error: object) -> None:
        """Stop recording."""
        for hook in self._hooks:
            hook.remove()

    @property
    def shift(self) -> float | None:
        """Mean distance of the passes from the stored statistics; None without BatchNorm."""
        return self._distance(lambda layer, _: _stored_statistics(layer))

    @property
    def scatter(self) -> float | None:
        """Mean distance of the passes from their own mean, a measure of random differences; None without BatchNorm."""
        return self._distance(lambda _, passes: passes.mean(0).unbind())

    def _distance(self, centre: Callable[[_BatchNorm, Tensor], Sequence[Tensor]]) -> float | None:
        if not self._layers or not self._seen[0]:
            return None
        distances = []
        for layer, seen in zip(self._layers, self._seen, strict=True):
            passes = torch.stack(seen)  # passes × (mean, variance) × channels
            mean, variance = centre(layer, passes)
            unit = _stored_statistics(layer)[1] + layer.eps
            # ((μ − μ₀)² + (σ − σ₀)²) / unit: the squared 2-Wasserstein distance of two Gaussians, per channel.
            spread = (passes[:, 1].sqrt() - variance.sqrt()).square()
            distances.append((((passes[:, 0] - mean).square() + spread) / unit).mean())
        return float(torch.stack(distances).mean())


def _stored_statistics(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var


def _record_moments(seen: list[Tensor], _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    seen.append(torch.stack(moments(inputs[0].detach().float())))


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and (uncorrected) variance of each channel.

    With the channels last in memory, BatchNorm's own kernel is ten times as fast as ``torch.var_mean``.
    """
    channels = values.shape[1]
    count = values.numel() // channels
    mean, variance = values.new_zeros(channels), values.new_zeros(channels)
    if count == 1:  # the kernel rejects a single value
        return values.reshape(channels), variance
    nn.functional.batch_norm(values, mean, variance, training=True, momentum=1.0)
    return mean, variance * ((count - 1) / count)
