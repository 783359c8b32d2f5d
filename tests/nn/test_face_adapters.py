"""Adapters in the convolutions of an iResNet: LoRA against weights written by hand, and merging."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.nn.images import random_images
from tests.nn.lora import compare_with_lora
from tests.refusals import refused
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.adapters import MARK, FaceAdapters, FaceBackbone, FrozenNetwork, load_frozen
from fedvisage.nn.face_networks import FaceNetwork, IResNet, face_network, iresnet

SIZE, WIDTH, LENGTH = 32, 8, 16
IMAGES = random_images(seed=1, dtype=torch.float64)


def plain_network() -> nn.Sequential:
    with seed_global_rng(0, "initial weights"):
        return iresnet(IResNet(depth=18, width=WIDTH, embedding=LENGTH), SIZE)


def build_network(**settings: Any) -> FrozenNetwork:
    options = FaceNetwork(name="iresnet18", width=WIDTH, embedding=LENGTH, adapters=FaceAdapters(**settings))
    with seed_global_rng(0, "initial weights"):
        net = face_network(options, SIZE)
    assert isinstance(net, FrozenNetwork)
    draw = torch.Generator().manual_seed(2)
    for value in net.parameters():
        value.data += 0.1 * torch.randn(value.shape, generator=draw)
    return net.double()


def test_values_and_gradients_are_those_of_lora_on_the_flattened_kernels() -> None:
    net, whole = build_network(rank=3, alpha=6.0), plain_network().double().eval().requires_grad_(False)
    adapted = compare_with_lora(net, whole, whole, IMAGES, alpha=6.0)
    assert {key.split(MARK)[0] for key in adapted} == {"stage4", "linear"}
    assert {"stage4:0:shortcut:0", "stage4:0:residual:1", "stage4:1:residual:4", "linear"} <= adapted


def test_merged_network_is_plain_and_computes_the_same() -> None:
    net = build_network(stages=(3, 4), rank=2)
    alone = net.fold_adapters()
    assert isinstance(alone, FaceBackbone)
    assert not any(one._forward_hooks for one in alone.modules())
    assert alone.network.state_dict().keys() == plain_network().state_dict().keys()
    with torch.no_grad():
        torch.testing.assert_close(alone(IMAGES), net(IMAGES))


def test_training_begins_at_the_frozen_network_whose_statistics_do_not_move() -> None:
    net, whole = build_network(), plain_network().double().eval()
    with torch.no_grad():
        for piece in net.low_rank.values():
            piece.get_parameter("b").zero_()
        torch.testing.assert_close(net.train()(IMAGES), whole(IMAGES))
        torch.testing.assert_close(net(IMAGES), whole(IMAGES))
    assert all(name.startswith("low_rank.") for name in net.state_dict())


def test_iresnet_50_at_rank_eight_sends_the_size_in_the_recipe() -> None:
    """Stage 4 of a 50: a block from 256 and two of 512 channels, and 512·7² numbers to 512 behind them."""
    three = [(256, 512), (512, 512), (512, 512), (512, 512), (512, 512), (512, 512)]
    numbers = sum(8 * (9 * inputs + outputs) for inputs, outputs in three) + 8 * (256 + 512) + 8 * (512 * 49 + 512)
    with torch.device("meta"):
        net = face_network(FaceNetwork(name="iresnet50", adapters=FaceAdapters()), 112)
    assert sum(value.numel() for value in net.parameters()) == numbers
    assert f"{4 * numbers / 1e6:.1f}" == "1.8"


@pytest.mark.parametrize(
    ("wrong", "keyword"),
    [
        ({"name": "sphere20", "adapters": {}}, "sphere20"),
        ({"name": "iresnet50", "adapters": {"stages": [5]}}, "from 1 to 4"),
        ({"name": "iresnet50", "adapters": {"stages": [], "linear": False}}, "linear"),
        ({"name": "iresnet50", "weights": "a"}, "training.start"),
    ],
)
def test_impossible_adapter_settings_are_refused(wrong: dict[str, Any], keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        FaceNetwork(**wrong)


def test_a_file_gives_the_frozen_weights_whole_or_is_refused_by_name(tmp_path: Path) -> None:
    net, given = build_network(), {f"model.{name}": value + 1 for name, value in plain_network().state_dict().items()}
    save_file(given, tmp_path / "start.safetensors")
    assert isinstance(net.frozen, FaceBackbone)
    load_frozen(net.frozen, tmp_path / "start.safetensors")
    for name, value in net.frozen.network.state_dict().items():
        assert torch.equal(value, given[f"model.{name}"].to(value))
    save_file({name: value for name, value in given.items() if "stage3" not in name}, tmp_path / "less.safetensors")
    with refused("recipe.method.network.weights", "stage3.0.residual.0.weight", "39"):
        load_frozen(net.frozen, tmp_path / "less.safetensors")
