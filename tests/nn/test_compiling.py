"""Which pieces of a network are compiled, and that they compute the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedvisage.nn.compute import blocks_of, compilation_failure, compile_blocks
from fedvisage.nn.resnet import ResNet18, pooled_features, resnet18


def test_stages_of_a_resnet_are_compiled_and_parts_called_separately_are_not() -> None:
    net = nn.ModuleDict({"model": resnet18(ResNet18(width=8), "rgb")})
    actual = list(blocks_of(net))
    assert actual == [net["model"].get_submodule(f"layer{number}") for number in range(1, 5)]


def test_compiled_blocks_are_members_of_lists_or_the_whole_part() -> None:
    inner = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    net = nn.ModuleDict({"listed": nn.ModuleDict({"one": nn.ModuleList([inner])}), "plain": nn.Linear(2, 1)})
    assert list(blocks_of(net)) == [inner, net["plain"]]


def test_an_error_about_anything_else_is_not_explained() -> None:
    assert compilation_failure(RuntimeError("shapes do not fit")) is None


@pytest.mark.slow
def test_compiled_blocks_equal_plain_ones() -> None:
    torch.manual_seed(0)
    plain = nn.ModuleDict({"model": resnet18(ResNet18(width=8), "rgb")})
    compiled = copy.deepcopy(plain)
    compile_blocks(compiled)
    images = torch.rand(4, 3, 32, 32)
    for net in (plain, compiled):
        pooled_features(net["model"], images).square().mean().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, atol=1e-5, rtol=1e-3)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
