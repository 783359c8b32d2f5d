"""A network whose BatchNorm layers are taken out: the same numbers, the state in two places."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.nn.images import random_images
from torch import nn

from fedvisage.base.streams import seed_global_rng
from fedvisage.nn.batchnorm import extract_norms
from fedvisage.nn.resnet import ResNet18, resnet18


def resnet() -> nn.Module:
    with seed_global_rng(0, "initial weights"):
        return resnet18(ResNet18(width=8), "rgb")


def split_network() -> nn.ModuleDict:
    body, norms = extract_norms(resnet())
    return nn.ModuleDict({"body": body, "norms": norms})


def train(net: nn.Module, forward: nn.Module) -> nn.Module:
    """Take two steps, so that weights and running statistics move, and switch to evaluation."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for seed in range(2):
        optimizer.zero_grad()
        forward(random_images(4, seed=seed)).square().mean().backward()
        optimizer.step()
    return net.eval()


def test_parts_train_and_evaluate_like_the_whole_network() -> None:
    whole, parts = resnet(), split_network()
    train(whole, whole)
    train(parts, parts["body"])
    assert torch.equal(parts["body"](random_images(4, seed=2)), whole(random_images(4, seed=2)))


def test_each_tensor_of_the_network_is_in_one_of_the_parts() -> None:
    whole, parts = resnet(), split_network()
    names = [name for name, module in whole.named_modules() if isinstance(module, nn.BatchNorm2d)]
    homes = {f"{name}.": f"norms.{number}." for number, name in enumerate(names)}
    expected = {}
    for key, value in whole.state_dict().items():
        layer, dot, tensor = key.rpartition(".")
        expected[homes.get(layer + dot, f"body.{layer}{dot}") + tensor] = value
    actual = parts.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_copy_of_both_parts_is_independent() -> None:
    parts = split_network()
    before = {name: value.clone() for name, value in parts.state_dict().items()}
    twin = copy.deepcopy(parts)
    train(twin, twin["body"])
    assert all(torch.equal(value, before[name]) for name, value in parts.state_dict().items())
    assert not torch.equal(twin["body"](random_images(4, seed=2)), parts.eval()["body"](random_images(4, seed=2)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_both_parts_are_moved_together(dtype: torch.dtype) -> None:
    parts = split_network().to(dtype).eval()
    assert parts["body"](random_images(4, seed=0).to(dtype)).dtype == dtype


def test_evaluation_mode_reaches_the_separated_layers() -> None:
    parts = split_network().eval()
    before = {name: value.clone() for name, value in parts["norms"].state_dict().items()}
    parts["body"](random_images(4, seed=0))
    assert all(torch.equal(value, before[name]) for name, value in parts["norms"].state_dict().items())
