"""LoRA written by hand, to compare networks with adapters with."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedvisage.nn.adapters import MARK, FrozenNetwork


class ByHand(nn.Module):
    """A weight with an adapter, as in the paper: W + (alpha / r) B A, A and B as matrices of the flattened kernel."""

    def __init__(self, a: Tensor, b: Tensor, alpha: float) -> None:
        super().__init__()
        self.a, self.b, self.factor = nn.Parameter(a.clone()), nn.Parameter(b.clone()), alpha / len(a)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.factor * (self.b @ self.a.flatten(1)).view_as(weight)


def compare_with_lora(
    net: FrozenNetwork, layers: nn.Module, whole: nn.Module, images: Tensor, alpha: float
) -> set[str]:
    """Compare values and gradients with those of ``whole``, whose ``layers`` get adapters; return the adapted ones."""
    twins = {}
    for key, piece in net.low_rank.items():
        twins[key] = ByHand(piece.get_parameter("a").detach(), piece.get_parameter("b").detach(), alpha)
        parametrize.register_parametrization(layers.get_submodule(key.replace(MARK, ".")), "weight", twins[key])
    actual, expected = net(images), whole(images)
    torch.testing.assert_close(actual, expected)
    direction = torch.randn(actual.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (actual * direction).sum().backward()
    (expected * direction).sum().backward()
    for key, twin in twins.items():
        for name in ("a", "b"):
            torch.testing.assert_close(net.low_rank[key].get_parameter(name).grad, twin.get_parameter(name).grad)
    assert all(value.grad is None for value in net.frozen.parameters())
    return set(twins)
