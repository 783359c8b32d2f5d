"""Loading a message into a network: complete parts of equal shapes, into the network's own memory layout."""

from pathlib import Path

import pytest
import torch
from tests.toy import recipe_of, tree
from torch import nn

from fedvisage.federation.wire.message import load_parts, state_of
from fedvisage.methods import METHODS


def network() -> nn.ModuleDict:
    return nn.ModuleDict({"a": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "b": nn.Linear(4, 2)})


def test_a_part_of_a_message_replaces_the_values_and_keeps_layout_and_gradients() -> None:
    source, net = network(), network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    source["a"].get_submodule("1")(torch.randn(8, 4, 2, 2))
    before = {name: value.clone() for name, value in net["b"].state_dict().items()}
    strides = [value.stride() for value in net["a"].parameters()]
    load_parts(net, state_of(source, "a"))
    assert all(torch.equal(value, source["a"].state_dict()[name]) for name, value in net["a"].state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in net["b"].state_dict().items())
    assert [value.stride() for value in net["a"].parameters()] == strides
    assert all(value.requires_grad and value.is_leaf for value in net.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_the_state_of_every_network_is_its_state_dict(name: str) -> None:
    content = tree({site: Path("nowhere", site) for site in "ABCU"}, name)
    net = METHODS[name].network(recipe_of(content))
    state, expected = state_of(net, *net), net.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[key], expected[key]) for key in state)


@pytest.mark.parametrize("fault", ["missing", "unexpected", "broadcast"])
def test_a_part_of_other_names_or_shapes_is_not_loaded(fault: str) -> None:
    net = network()
    message = state_of(net, "b")
    if fault == "missing":
        del message["b.bias"]
    elif fault == "unexpected":
        message["b.scale"] = torch.ones(2)
    else:
        message["b.bias"] = torch.ones(1)
    with pytest.raises(RuntimeError, match=r"bias|scale"):
        load_parts(net, message)
