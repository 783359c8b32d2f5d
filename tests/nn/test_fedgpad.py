"""FedGPAD's networks: the paper's Table II, and that they fit other sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedvisage.nn.fedgpad import Decoder, DepthEstimator, Encoder, TableII, classifier, initialise
from fedvisage.streams import scoped


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_full_width_networks_have_the_parameters_of_table_ii() -> None:
    assert parameters(Encoder(6, 64)) == 3_353_496
    assert parameters(DepthEstimator(64)) == 517_058
    assert parameters(Decoder(6, 64, 256)) == 11_178_944
    assert parameters(classifier(TableII())) == 263_169
    assert parameters(classifier(TableII(classifier="linear"))) == 513


@pytest.mark.parametrize("width", range(8, 65, 8))
def test_a_narrow_network_keeps_the_tables_shape_in_whole_vectors(width: int) -> None:
    found = [layer.out_channels for layer in Encoder(6, width).modules() if isinstance(layer, nn.Conv2d)]
    table = [64, *3 * [128, 196, 128], 128, 256, 512]
    assert all(
        channels % 4 == 0 and 0 <= wide * width / 64 - channels < 4 for channels, wide in zip(found, table, strict=True)
    )


@pytest.mark.parametrize("size", [32, 64, 96, 128])
def test_all_five_fit_together_at_any_size(size: int) -> None:
    images = torch.rand(2, 6, size, size)
    features, pooled = Encoder(6, 8)(images)
    assert [one.shape[-1] for one in pooled] == [size // 2, size // 4, size // 8]
    assert DepthEstimator(8)(pooled).shape == (2, 32, 32)
    assert classifier(TableII(width=8))(features).shape == (2, 1)
    assert Decoder(6, 8, size)(features).shape == images.shape


def fans(layer: nn.Module) -> tuple[int, int]:
    """Return how many values a weight's layer takes and gives, kernels counted."""
    weight = layer.get_parameter("weight")
    return weight.shape[1] * weight[0, 0].numel(), weight.shape[0] * weight[0, 0].numel()


def test_weights_begin_evenly_within_the_bound_of_xavier() -> None:
    """U(-a, a) with a = √(6 / (fan in + fan out)), gain 1."""
    with scoped(0, "weights"):
        net = Encoder(6, 16)
        initialise(net)
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.Conv2d)):
        bound = (6 / sum(fans(layer))) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)


def test_released_weights_begin_small_and_normal() -> None:
    with scoped(0, "weights"):
        net, decoder = nn.Sequential(Encoder(6, 16), classifier(TableII(width=16))), Decoder(6, 16, 32)
        drawn = decoder.layers[0].weight.detach().clone()
        initialise(net, "released")
        initialise(decoder, "released")
    for layer in (
        layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear) and layer.weight.numel() > 500
    ):
        width = 0.02 * (2 / sum(fans(layer) if isinstance(layer, nn.Conv2d) else layer.weight.shape)) ** 0.5
        assert float(layer.weight.detach().std()) == pytest.approx(width, rel=0.15)
    scales = torch.cat([layer.weight.detach() for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)])
    assert float(scales.mean()) == pytest.approx(1, abs=0.01)
    assert float(scales.std()) == pytest.approx(0.02, rel=0.3)
    assert torch.equal(decoder.layers[0].weight, drawn)
