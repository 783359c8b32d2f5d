"""FedGPAD's networks: the paper's Table II, also at other sizes."""

import pytest
import torch
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.fedgpad import (
    Decoder,
    DepthEstimator,
    Encoder,
    TableII,
    classifier,
    depth_estimator,
    encoder,
    initialise,
)
from fedvisage.nn.resnet import pooled_features


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
    actual = [layer.out_channels for layer in Encoder(6, width).modules() if isinstance(layer, nn.Conv2d)]
    table = [64, *3 * [128, 196, 128], 128, 256, 512]
    assert all(
        channels % 4 == 0 and 0 <= wide * width / 64 - channels < 4
        for channels, wide in zip(actual, table, strict=True)
    )


OTHERS = [TableII(width=8, stem="unshuffled"), TableII(width=8, encoder="resnet18")]


@pytest.mark.parametrize("options", [TableII(width=8), *OTHERS], ids=["printed", "unshuffled", "resnet18"])
@pytest.mark.parametrize("size", [32, 64, 96, 128])
def test_all_five_fit_together_at_any_size(options: TableII, size: int) -> None:
    images = torch.rand(2, 6, size, size)
    features, maps = encoder(options, "rgb+hsv")(images)
    assert [one.shape[-1] for one in maps] == [size // 2, size // 4, size // 8], "inputs of the depth estimator"
    assert depth_estimator(options)(maps).shape == (2, 32, 32)
    assert classifier(options)(features).shape == (2, 1)
    assert Decoder(6, options.width, size)(features).shape == images.shape


@pytest.mark.parametrize("options", OTHERS, ids=["unshuffled", "resnet18"])
def test_every_pixel_and_every_weight_has_a_gradient(options: TableII) -> None:
    with seed_global_rng(1, "weights"):
        parts = nn.ModuleList([encoder(options, "rgb"), depth_estimator(options), classifier(options)])
    for layer in (layer for layer in parts.modules() if isinstance(layer, nn.BatchNorm2d)):
        nn.init.ones_(layer.weight)  # ResNet-18's branches begin at zero
    images = torch.rand(4, 3, 32, 32, requires_grad=True)
    features, maps = parts[0](images)
    loss = parts[1](maps).square().sum() + parts[2](features).square().sum()
    of_images, *of_weights = torch.autograd.grad(loss, [images, *parts.parameters()])
    assert (of_images.abs().sum(dim=(0, 1)) > 0).all()
    assert all(gradient.any() for gradient in of_weights)


def test_resnet18_encoder_computes_fedpads_features_and_three_of_its_maps() -> None:
    """The features are those of timm's own forward pass; maps at a half, a quarter and an eighth have no negatives."""
    net = encoder(TableII(width=8, encoder="resnet18"), "rgb+hsv").eval()
    images = torch.randn(2, 6, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features, maps = net(images)
        torch.testing.assert_close(features, pooled_features(net.get_submodule("trunk"), images))
    assert [tuple(values.shape[1:]) for values in maps] == [(64, 32, 32), (8, 16, 16), (16, 8, 8)]
    assert all(float(values.min()) >= 0 for values in maps)


def test_unshuffled_stem_is_a_strided_convolution() -> None:
    """Its weights at a place and colour are those of a 6×6 convolution of stride 2 over the pixels themselves."""
    with seed_global_rng(2, "weights"):
        stem = Encoder(3, 8, "unshuffled").stem.get_submodule("0")
    weight = stem.get_parameter("weight").detach().reshape(-1, 3, 2, 2, 3, 3)
    wide = weight.permute(0, 1, 4, 2, 5, 3).reshape(-1, 3, 6, 6)
    images = torch.rand(1, 3, 16, 16)
    expected = nn.functional.conv2d(images, wide, stride=2, padding=2)
    assert torch.allclose(stem(nn.functional.pixel_unshuffle(images, 2)), expected, atol=1e-5)


def products(net: nn.Module, size: int) -> int:
    """Count the multiplications of a network's convolutions for one image."""
    counts: list[int] = []
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.Conv2d)):
        each = layer.weight.numel()
        layer.register_forward_hook(lambda _, __, found, each=each: counts.append(each * found[0, 0].numel()))
    with torch.no_grad():
        net.eval()(torch.zeros(1, 6, size, size))
    return sum(counts)


def test_an_unshuffled_stem_halves_the_multiplications_and_resnet18_takes_a_nineteenth() -> None:
    """By Table II: 9 products a weight, of which block 1 has 58,752 a pixel at full size, and so on."""
    full, second, third = 6 * 64 + 64 * 128 + 2 * 128 * 196, 128 * 128 + 2 * 128 * 196, 128 * 128 + 2 * 128 * 196
    rest = second / 4 + third / 16 + 128 * 128 / 64 + 128 * 256 / 256 + 256 * 512 / 1024
    plain, smaller = 9 * 64**2 * (full + rest), 9 * 64**2 * ((full + 3 * 6 * 64) / 4 + rest)
    assert products(Encoder(6, 64), 64) == plain
    assert products(Encoder(6, 64, "unshuffled"), 64) == smaller
    assert plain / smaller == pytest.approx(2.21, abs=0.005)
    assert plain / products(encoder(TableII(encoder="resnet18"), "rgb+hsv"), 64) == pytest.approx(19, rel=0.1)


def fans(layer: nn.Module) -> tuple[int, int]:
    """Return how many values a weight's layer takes and gives, kernels counted."""
    weight = layer.get_parameter("weight")
    return weight.shape[1] * weight[0, 0].numel(), weight.shape[0] * weight[0, 0].numel()


def test_initial_weights_are_uniform_within_the_bound_of_xavier() -> None:
    """U(-a, a) with a = √(6 / (fan in + fan out)), gain 1."""
    with seed_global_rng(0, "weights"):
        net = Encoder(6, 16)
        initialise(net)
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.Conv2d)):
        bound = (6 / sum(fans(layer))) ** 0.5
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)


def test_released_initial_weights_are_small_and_normal() -> None:
    with seed_global_rng(0, "weights"):
        net, decoder = nn.Sequential(Encoder(6, 16), classifier(TableII(width=16))), Decoder(6, 16, 32)
        drawn = decoder.get_parameter("layers.0.weight").detach().clone()
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
    assert torch.equal(decoder.get_parameter("layers.0.weight"), drawn)
