"""Loading a message has the result, and the refusals, of torch's own loading of a state."""

import pytest
import torch
from torch import Tensor, nn

from fedvisage.federation.wire.message import load_parts, state_of


class Doubled(nn.Linear):
    """A layer that loads its state in a way of its own."""

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        super()._load_from_state_dict({name: 2 * value for name, value in state.items()}, prefix, *rest)  # type: ignore[arg-type]


def network(seed: int) -> nn.ModuleDict:
    torch.manual_seed(seed)
    shared = nn.Linear(4, 4)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(shared, nn.ReLU(), shared))
    return nn.ModuleDict({"body": body, "head": nn.Linear(4, 2), "own": Doubled(2, 2)})


def test_parts_hold_what_torch_loads() -> None:
    source, net, expected = network(0), network(1), network(1)
    message = state_of(source, "body", "own") | {"loss": torch.zeros(())}
    load_parts(net, message)
    for part in ("body", "own"):
        expected[part].load_state_dict({name: value.clone() for name, value in source[part].state_dict().items()})
    for name, value in expected.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_hook_of_a_module_sees_the_state() -> None:
    net, seen = network(0), list[str]()
    net["body"][2].register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    load_parts(net, state_of(network(1), "body"))
    assert seen == ["loaded"]


@pytest.mark.parametrize("change", [{"head.more": torch.zeros(1)}, {"head.bias": torch.zeros(3)}, {"head.bias": None}])
def test_a_part_that_is_not_complete_is_refused(change: dict[str, Tensor | None]) -> None:
    net = network(0)
    message = {name: value for name, value in (state_of(net, "head") | change).items() if value is not None}
    with pytest.raises(RuntimeError, match="state_dict"):
        load_parts(net, message)
