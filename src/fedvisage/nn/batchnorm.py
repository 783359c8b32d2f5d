"""BatchNorm layers of a network: whose statistics they use, and how far a batch lies from the stored ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# A network taken apart into its normalisation layers and the rest, so that they can live in different places.


class Borrowed(nn.Module):
    """Stands where a layer was and computes with it; weights and state belong to the module that holds the layer.

    The layer is out of torch's sight here: moving or copying is to be done to body and layers together, as for the
    parts of one network. Only switching the body to evaluation, and back, reaches the layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        """Keep the layer in a tuple, where torch does not register it."""
        super().__init__()
        self._layer = (layer,)

    def forward(self, values: Tensor) -> Tensor:
        """Compute what the layer computes."""
        outputs: Tensor = self._layer[0](values)
        return outputs

    def train(self, mode: bool = True) -> Borrowed:
        """Switch the layer as well, which normalises by its batch in training only."""
        self._layer[0].train(mode)
        return super().train(mode)


def split(network: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """Take the normalisation layers out of a network; return the network, which still uses them, and them in order.

    They are its BatchNorm layers, or its layer and group norms where it has none of those. Nothing is copied or drawn:
    body and layers together compute the same numbers as before.
    """
    layers = _layers(network, (_BatchNorm,)) or _layers(network, (nn.LayerNorm, nn.GroupNorm))
    for name, layer in layers:
        network.set_submodule(name, Borrowed(layer))
    return network, nn.ModuleList(layer for _, layer in layers)


def _layers(network: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in network.named_modules() if isinstance(module, kinds)]


def batchnorms(net: nn.Module) -> list[_BatchNorm]:
    """Return the network's BatchNorm layers."""
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


def hold_statistics(net: nn.Module) -> None:
    """Let BatchNorm layers of a network in training normalise by what they have stored, and store nothing more."""
    for layer in batchnorms(net):
        layer.eval()


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
    before = [([stored.clone() for stored in _stored(layer)], layer.momentum) for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average
        layer.train()
    try:
        yield
    finally:
        for layer, (old, momentum) in zip(layers, before, strict=True):
            layer.eval()
            layer.momentum = momentum
            for stored, kept in zip(_stored(layer), old, strict=True):
                stored.lerp_(kept, keep)


@dataclass(frozen=True)
class Pooled:
    """Mean and (uncorrected) variance of each channel of some values, in float64, and what they count beside others."""

    mean: Tensor
    variance: Tensor
    weight: float


def pooled(parts: Iterable[Pooled]) -> Pooled:
    """Return the statistics of all values together: the variance within the parts, and that between their means."""
    known = list(parts)
    weights = torch.tensor([part.weight for part in known], dtype=torch.float64, device=known[0].mean.device)[:, None]
    means, variances = (torch.stack([getattr(part, name) for part in known]) for name in ("mean", "variance"))
    total = weights.sum()
    mean = (weights * means).sum(0) / total
    variance = (weights * (variances + (means - mean).square())).sum(0) / total
    return Pooled(mean, variance, float(total))


class Reached(Exception):
    """Ends a forward pass at the layer that it was about."""


def passed(net: nn.Module, forward: Callable[[], object]) -> dict[str, int]:
    """Return the BatchNorm layers with statistics that a forward pass reaches, in their order, and how often each."""
    seen: Counter[str] = Counter()

    def count(name: str, *_: object) -> None:
        seen[name] += 1

    named = [(name, module) for name, module in net.named_modules()
             if isinstance(module, _BatchNorm) and module.running_mean is not None]  # fmt: skip
    hooks = [module.register_forward_pre_hook(partial(count, name)) for name, module in named]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return dict(seen)


def before(layer: nn.Module, times: int, forwards: Iterable[Callable[[], object]]) -> Pooled:
    """Return the statistics of what comes to a layer in forward passes, each of which passes it so many times.

    What stands behind the layer is not computed. A value of the one pass counts as one of any other.
    """
    found: list[Pooled] = []
    left = times

    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal left
        values = inputs[0].detach().float()
        mean, variance = moments(values)
        found.append(Pooled(mean.double(), variance.double(), values.numel() / values.shape[1]))
        left -= 1
        if not left:
            raise Reached

    hook = layer.register_forward_pre_hook(watch)
    try:
        for forward in forwards:
            left = times
            try:
                forward()
            except Reached:
                continue
    finally:
        hook.remove()
    return pooled(found)


class StatisticsMeter:
    """Watches, while it is open, the mean and variance that each forward pass brings to BatchNorm layers."""

    def __init__(self, net: nn.Module) -> None:
        """Prepare to watch a network in evaluation mode."""
        self._layers = batchnorms(net)
        self._seen: list[list[Tensor]] = [[] for _ in self._layers]
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> StatisticsMeter:
        """Begin to watch."""
        for layer, seen in zip(self._layers, self._seen, strict=True):
            self._hooks.append(layer.register_forward_pre_hook(_watcher(seen)))
        return self

    def __exit__(self, *error: object) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()

    @property
    def shift(self) -> float | None:
        """How far the passes lie from the stored statistics, as a mean over them; None without BatchNorm."""
        return self._distance(lambda layer, _: _stored(layer))

    @property
    def scatter(self) -> float | None:
        """How far the passes lie from their own mean: what a batch differs by chance; None without BatchNorm."""
        return self._distance(lambda _, passes: passes.mean(0).unbind())

    def _distance(self, centre: Callable[[_BatchNorm, Tensor], Sequence[Tensor]]) -> float | None:
        if not self._layers or not self._seen[0]:
            return None
        distances = []
        for layer, seen in zip(self._layers, self._seen, strict=True):
            passes = torch.stack(seen)  # passes × (mean, variance) × channels
            mean, variance = centre(layer, passes)
            unit = _stored(layer)[1] + layer.eps
            distances.append(channel_distance(passes[:, 0], passes[:, 1], mean, variance, unit).mean())
        return float(torch.stack(distances).mean())


def channel_distance(mean: Tensor, variance: Tensor, mean0: Tensor, variance0: Tensor, unit: Tensor) -> Tensor:
    """Return ((μ − μ₀)² + (σ − σ₀)²) / unit: the squared 2-Wasserstein distance of two Gaussians, by channel."""
    return ((mean - mean0).square() + (variance.sqrt() - variance0.sqrt()).square()) / unit


def _stored(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var


def _watcher(seen: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(torch.stack(moments(inputs[0].detach().float())))

    return watch


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and (uncorrected) variance of each channel.

    BatchNorm's own kernel finds them ten times as fast as ``torch.var_mean`` where channels lie last in memory.
    """
    channels = values.shape[1]
    count = values.numel() // channels
    mean, variance = values.new_zeros(channels), values.new_zeros(channels)
    if count == 1:  # the kernel refuses a single value
        return values.reshape(channels), variance
    nn.functional.batch_norm(values, mean, variance, training=True, momentum=1.0)
    return mean, variance * ((count - 1) / count)
