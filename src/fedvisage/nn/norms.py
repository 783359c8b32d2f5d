"""A network taken apart into its normalisation layers and the rest, so that they can live in different places."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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
