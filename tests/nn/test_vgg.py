"""The plain VGG: its shape, and that the order of its neurons does not matter."""

from __future__ import annotations

import pytest
import torch
from tests.nn.images import random_images
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.matching import reorder_inputs
from fedvisage.nn.vgg import LAYERS, VGG, apply_layers, vgg


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
    before = apply_layers(net, random_images(4, channels=6), LAYERS)
    here, following = net[layer][0], net[LAYERS[LAYERS.index(layer) + 1]][0]
    order = torch.randperm(len(here.weight), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        here.weight[order], here.bias[order] = here.weight.clone(), here.bias.clone()
        following.weight.copy_(reorder_inputs(following.weight, order))
    torch.testing.assert_close(apply_layers(net, random_images(4, channels=6), LAYERS), before, rtol=0, atol=1e-5)


def test_spare_neurons_change_nothing_and_stay_zero_in_training() -> None:
    plain, roomy = build_network(), build_network(spare=3)
    torch.testing.assert_close(
        apply_layers(roomy, random_images(4, channels=6), LAYERS),
        apply_layers(plain, random_images(4, channels=6), LAYERS),
    )
    adam = torch.optim.Adam(roomy.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(3):
        adam.zero_grad()
        logits = apply_layers(roomy, random_images(4, channels=6), LAYERS).squeeze(1)
        binary_cross_entropy_with_logits(logits, torch.tensor([0.0, 1.0, 1.0, 0.0])).backward()  # type: ignore[no-untyped-call]
        adam.step()
    for name in LAYERS[:-1]:
        layer = roomy[name][0]
        assert layer.weight[:-3].any()
        assert not layer.weight[-3:].any()
        assert not layer.bias[-3:].any()
    assert not roomy["output"][0].weight[:, -3:].any()
