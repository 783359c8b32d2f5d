"""The face recognition networks: their sizes in the literature, their shapes, their seeds."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError
from tests.nn.images import random_images
from tests.refusals import refused
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.face_networks import IResNet, MobileFaceNet, Sphere, iresnet, mobilefacenet, sphere
from fedvisage.nn.vit import last_side

NARROW: dict[str, Callable[[int], nn.Sequential]] = {
    "sphere20": lambda size: sphere(Sphere(depth=20, width=8, embedding=32), size),
    "sphere64": lambda size: sphere(Sphere(width=8, embedding=32), size),
    "iresnet18": lambda size: iresnet(IResNet(depth=18, width=8, embedding=32), size),
    "iresnet50": lambda size: iresnet(IResNet(width=8, embedding=32), size),
    "mobilefacenet": lambda size: mobilefacenet(MobileFaceNet(width=8, embedding=32), size),
}


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(("depth", "blocks", "convolutions"), [(20, (1, 2, 4, 1), 20), (64, (3, 7, 16, 3), 62)])
def test_sphere_has_the_layers_of_its_table(depth: int, blocks: tuple[int, ...], convolutions: int) -> None:
    with torch.device("meta"):
        net = sphere(Sphere.model_validate({"depth": depth}))
    widths = (3, 64, 128, 256, 512)
    beginnings = sum(9 * before * width + width + width for before, width in pairwise(widths))
    residual = sum(number * 2 * (9 * width**2 + width) for number, width in zip(blocks, widths[1:], strict=True))
    assert count(net) == beginnings + residual + 512 * 7 * 7 * 512 + 512
    assert sum(isinstance(layer, nn.Conv2d) for layer in net.modules()) == convolutions
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules())


@pytest.mark.parametrize(("depth", "parameters"), [(18, 24_025_600), (50, 43_590_848)])
def test_iresnet_has_as_many_parameters_as_published_ones(depth: int, parameters: int) -> None:
    with torch.device("meta"):
        net = iresnet(IResNet.model_validate({"depth": depth}))
    assert count(net) == parameters
    assert [name for name, one in net.named_parameters() if not one.requires_grad] == ["features.weight"]


def test_mobilefacenet_has_the_papers_0_99_million_parameters_at_128_numbers() -> None:
    """A published converted model, with BatchNorm folded into biases, has 0.993 million."""
    with torch.device("meta"):
        net, small = mobilefacenet(MobileFaceNet()), mobilefacenet(MobileFaceNet(embedding=128))
    channels = sum(layer.num_features for layer in small.modules() if isinstance(layer, nn.BatchNorm2d))
    assert round((count(small) - channels) / 1e6, 3) == 0.993
    assert count(net) == count(small) + (512 - 128) * (512 + 2) == 1_200_512


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("size", [16, 48])
def test_any_multiple_of_sixteen_gives_trainable_features(name: str, size: int) -> None:
    net = NARROW[name](size)
    features = net(random_images(size=size))
    assert features.shape == (2, 32)
    features.square().sum().backward()
    learning = {key: one.grad for key, one in net.named_parameters() if one.requires_grad}
    assert all(grad is not None and grad.isfinite().all() for grad in learning.values())


@pytest.mark.parametrize("name", NARROW)
def test_each_network_halves_its_maps_four_times(name: str) -> None:
    sides = []
    net = NARROW[name](48)
    for part in ("stage1", "stage2", "stage3", "stage4"):
        net.get_submodule(part).register_forward_hook(lambda _, __, output: sides.append(output.shape[-1]))
    net.eval()(random_images(size=48))
    assert sides == ([12, 6, 6, 3] if name == "mobilefacenet" else [24, 12, 6, 3])


@pytest.mark.parametrize("name", NARROW)
def test_initial_weights_follow_from_the_seed(name: str) -> None:
    drawn = []
    for seed in (0, 0, 1):
        with seed_global_rng(seed, "initial weights"):
            drawn.append(torch.cat([one.flatten() for one in NARROW[name](16).parameters()]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("size", [0, 8, 100, 113])
def test_other_sizes_are_refused(size: int) -> None:
    with refused("recipe.input.size", "16", str(size)):
        last_side(size)


def test_unsupported_depths_and_widths_are_refused() -> None:
    for options in ({"depth": 34}, {"width": 12}, {"width": 128}, {"embedding": 0}):
        with pytest.raises(ValidationError):
            IResNet.model_validate(options)
