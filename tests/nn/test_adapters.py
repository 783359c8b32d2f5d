"""Adapters in a frozen transformer: LoRA and BitFit against layers written by hand."""

import copy
from typing import Any

import pytest
import torch
from tests.nn.images import random_images
from tests.nn.lora import compare_with_lora
from tests.refusals import refused
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.adapters import MARK, AdaptedNetwork, FrozenNetwork, adapted_network
from fedvisage.nn.timm_network import NormalisedNetwork, timm_network
from fedvisage.recipe import Input

SIZE = 32
IMAGES = random_images(seed=1)


def build_network(arch: str = "test_vit", size: int = SIZE, **settings: Any) -> FrozenNetwork:
    with seed_global_rng(0, "initial weights"):
        return adapted_network(AdaptedNetwork(arch=arch, **settings), Input(size=size, colour="rgb"))


def frozen_alone(arch: str = "test_vit") -> NormalisedNetwork:
    with seed_global_rng(0, "initial weights"):
        return timm_network(AdaptedNetwork(arch=arch), Input(size=SIZE, colour="rgb"), outputs=0).eval()


def add_noise(net: FrozenNetwork) -> FrozenNetwork:
    draw = torch.Generator().manual_seed(2)
    for value in net.parameters():
        value.data += 0.1 * torch.randn(value.shape, generator=draw)
    return net


def test_values_and_gradients_are_those_of_lora_written_by_hand() -> None:
    net = add_noise(build_network(rank=3, alpha=6.0)).double()
    whole = frozen_alone().double().requires_grad_(False)
    adapted = compare_with_lora(net, whole.network, whole, IMAGES.double(), alpha=6.0)
    assert {key.split(MARK)[-1] for key in adapted} == {"qkv", "proj", "fc1", "fc2"}


def test_training_starts_at_the_frozen_network_and_state_holds_only_adapters() -> None:
    net = build_network(rank=2, biases=True)
    with torch.no_grad():
        torch.testing.assert_close(net(IMAGES), frozen_alone()(IMAGES))
    assert all(name.startswith(("low_rank.", "shifts.")) for name in net.state_dict())
    assert sum(map(torch.Tensor.numel, net.parameters())) < 0.2 * sum(map(torch.Tensor.numel, net.frozen.parameters()))


def test_rank_zero_is_the_frozen_network_without_trainable_parameters() -> None:
    net = build_network(rank=0)
    assert not list(net.parameters())
    assert not net.state_dict()
    with torch.no_grad():
        assert torch.equal(net(IMAGES), frozen_alone()(IMAGES))


def test_shifts_equal_training_of_the_biases() -> None:
    net, whole = build_network(rank=0, biases=True), frozen_alone()
    biases = {name: value for name, value in whole.network.named_parameters() if name.endswith(".bias")}
    (net(IMAGES).square().sum()).backward()
    (whole(IMAGES).square().sum()).backward()
    for key, piece in net.shifts.items():
        torch.testing.assert_close(piece.value.grad, biases[f"{key.replace(MARK, '.')}.bias"].grad)
    within = {name.removesuffix(".bias") for name in biases if name.startswith("blocks.")}
    assert {key.replace(MARK, ".") for key in net.shifts} == within


@pytest.mark.long
@pytest.mark.parametrize("arch", ["test_vit", "eva02_tiny_patch14_224", "vit_pe_core_tiny_patch16_384"])
def test_merged_network_computes_the_same_without_adapters(arch: str) -> None:
    size = 56 if "eva" in arch else SIZE
    net = add_noise(build_network(arch, size, rank=2, biases=True, blocks=(0,)))
    plain = net.fold_adapters()
    assert not any(isinstance(one, FrozenNetwork) or one._forward_hooks for one in plain.modules())
    with torch.no_grad():
        actual, adapted = plain(random_images(size=size, seed=1)), net(random_images(size=size, seed=1))
        for value in net.parameters():
            value.zero_()
        torch.testing.assert_close(actual, adapted, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(adapted, net(random_images(size=size, seed=1)), atol=1e-4)


def test_copy_has_its_own_adapters() -> None:
    net = add_noise(build_network(rank=2))
    other = copy.deepcopy(net)
    with torch.no_grad():
        before = net(IMAGES)
        for value in other.parameters():
            value.zero_()
        assert torch.equal(net(IMAGES), before)
        torch.testing.assert_close(other(IMAGES), frozen_alone()(IMAGES))


def test_named_blocks_and_halves_alone_are_adapted() -> None:
    net = build_network(rank=2, blocks=(1,), on=("mlp",))
    assert set(net.low_rank) == {"blocks:1:mlp:fc1", "blocks:1:mlp:fc2"}
    with refused("recipe.method.network.blocks", "block 99", "5"):
        build_network(rank=2, blocks=(99,))
    with refused("recipe.method.network.arch", "test_efficientnet"):
        build_network("test_efficientnet", rank=2)


def test_a_vit_b_at_rank_eight_sends_less_than_five_megabytes() -> None:
    """Twelve blocks of 768: four layers each, of 8·(inputs + outputs) numbers, and the head."""
    with torch.device("meta"):
        layers = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
        net = nn.ModuleList(nn.Linear(*one) for one in layers * 12)
    computed = sum(8 * (one.in_features + one.out_features) for one in net if isinstance(one, nn.Linear)) + 769
    assert 4 * computed == 4_721_668
    narrow = build_network(rank=8)
    expected = sum(
        8 * (one.in_features + one.out_features)
        for name, one in narrow.frozen.named_modules()
        if isinstance(one, nn.Linear) and ".blocks." in f".{name}"
    )
    assert sum(value.numel() for value in narrow.state_dict().values()) == expected
