"""The plain VGG: its shape, and its invariance to the order of neurons."""

import pytest
import torch
from tests.nn.images import random_images
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.matching import reorder_inputs
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg

IMAGES = random_images(4, channels=6)


def build_network(width: int = 8, spare: int = 0, inputs: int = 6) -> nn.ModuleDict:
    with seed_global_rng(0, "initial weights"):
        return vgg(VGG(width=width), inputs, spare)


def test_at_full_width_the_convolutions_are_the_first_six_of_vgg_11() -> None:
    """VGG-11 has 132,863,336 weights, 123,642,856 of them after its eight convolutions."""
    last_two = 2 * (512 * 512 * 9 + 512)
    convolutions = nn.ModuleDict(
        {name: part for name, part in build_network(64, inputs=3).items() if "convolution" in name}
    )
    assert sum(one.numel() for one in convolutions.parameters()) == 132_863_336 - 123_642_856 - last_two


@pytest.mark.parametrize("size", [32, 96, 256])
def test_any_size_gives_one_logit(size: int) -> None:
    assert apply_layers(build_network(), random_images(size=size, channels=6), LAYERS).shape == (2, 1)


@pytest.mark.parametrize("layer", LAYERS[:-1])
def test_the_order_of_a_layers_neurons_does_not_matter(layer: str) -> None:
    net = build_network()
    before = apply_layers(net, IMAGES, LAYERS)
    following = net[LAYERS[LAYERS.index(layer) + 1]].get_parameter("0.weight")
    weight, bias = (net[layer].get_parameter(f"0.{kind}") for kind in ("weight", "bias"))
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        weight[order], bias[order] = weight.clone(), bias.clone()
        following.copy_(reorder_inputs(following, order))
    torch.testing.assert_close(apply_layers(net, IMAGES, LAYERS), before, rtol=0, atol=1e-5)


def test_spare_neurons_change_nothing_and_stay_zero_in_training() -> None:
    plain, roomy = build_network(), build_network(spare=3)
    torch.testing.assert_close(
        apply_layers(roomy, IMAGES, LAYERS),
        apply_layers(plain, IMAGES, LAYERS),
    )
    adam = torch.optim.Adam(roomy.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(3):
        adam.zero_grad()
        logits = apply_layers(roomy, IMAGES, LAYERS).squeeze(1)
        binary_cross_entropy_with_logits(logits, torch.tensor([0.0, 1.0, 1.0, 0.0])).backward()
        adam.step()
    for name in LAYERS[:-1]:
        weight, bias = (roomy[name].get_parameter(f"0.{kind}") for kind in ("weight", "bias"))
        assert weight[:-3].any()
        assert not weight[-3:].any()
        assert not bias[-3:].any()
    assert not roomy["output"].get_parameter("0.weight")[:, -3:].any()
