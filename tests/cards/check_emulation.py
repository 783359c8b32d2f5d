"""The emulated cards refuse what GPUs refuse, and have generators of their own. `test_cards.py` runs this file."""

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.cards.emulated_card import CardModule, emulated_cards
from torch import Tensor, nn

from fedvisage.base.streams import seed_global_rng, torch_rng


@pytest.fixture(autouse=True)
def cards() -> Iterator[None]:
    with emulated_cards():
        yield


def on(device: str) -> Tensor:
    return torch.arange(6.0).reshape(2, 3).to(device)


@pytest.mark.parametrize(
    "operation",
    [
        lambda: on("card:0") + on("card:1"),
        lambda: on("card:0") + on("cpu"),
        lambda: torch.cat([on("cpu"), on("card:1")]),
        lambda: nn.Linear(3, 1)(on("card:0")),
        lambda: on("card:1")[torch.tensor([0], device="card:0")],
        lambda: torch.rand(3, device="card:1", generator=torch.Generator()),
        lambda: torch.rand(3, device="card:1", generator=torch.Generator("card:0")),
        lambda: torch.rand(3, generator=torch.Generator("card:0")),
    ],
)
def test_an_operation_refuses_tensors_and_generators_of_several_devices(operation: Callable[[], Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"card:[01]"):
        operation()


@pytest.mark.parametrize("device", ["card:0", "card:1"])
def test_results_and_gradients_stay_on_the_card_and_copies_have_the_values(device: str) -> None:
    layer = nn.Linear(3, 1).to(device)
    loss = layer(on(device)).sum()
    loss.backward()
    assert layer.weight.grad is not None
    assert {str(value.device) for value in (layer.weight, loss, layer.weight.grad)} == {device}
    assert torch.equal(layer.weight.grad.cpu(), torch.tensor([[3.0, 5.0, 7.0]]))
    assert torch.equal(on(device)[:, torch.tensor([0])].to("card:0").cpu(), torch.tensor([[0.0], [3.0]]))
    assert str(torch.zeros(2, device=device).device) == device


def test_numpy_cannot_read_a_card() -> None:
    with pytest.raises(TypeError, match="card:0"):
        on("card:0").numpy()
    assert on("card:0").tolist() == on("cpu").tolist()


def test_autocast_computes_in_bf16_as_on_a_cpu() -> None:
    layer, images = nn.Conv2d(2, 2, 1), torch.rand(1, 2, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = layer(images)
    with torch.autocast("card", dtype=torch.bfloat16):
        result = layer.to("card:1")(images.to("card:1"))
    assert result.dtype == torch.bfloat16
    assert torch.equal(result.cpu(), expected)


def test_draws_of_a_card_follow_its_own_generator() -> None:
    draw = torch.rand(4, device="card:0", generator=torch.Generator("card:0").manual_seed(3))
    assert torch.equal(draw.cpu(), torch.rand(4, generator=torch.Generator().manual_seed(3)))


def test_a_scope_seeds_the_generator_of_its_device_and_of_no_other() -> None:
    before = [generator.get_state() for generator in CardModule.default_generators]
    with seed_global_rng(0, "weights", device=torch.device("card:1")):
        first = torch.rand(3, device="card:1")
        states = [generator.get_state() for generator in CardModule.default_generators]
    with seed_global_rng(0, "weights"):
        assert torch.equal(torch.rand(3), first.cpu()), "it has the seed of the stream"
    after = [generator.get_state() for generator in CardModule.default_generators]
    assert torch.equal(states[0], before[0])
    assert not torch.equal(states[1], before[1])
    assert all(torch.equal(state, start) for state, start in zip(after, before, strict=True))


@pytest.mark.parametrize("device", ["card:0", "card:1"])
def test_a_stream_draws_on_its_device(device: str) -> None:
    generator = torch_rng(3, "x", device=torch.device(device))
    draw = torch.rand(5, generator=generator, device=device)
    assert torch.equal(draw.cpu(), torch.rand(5, generator=torch_rng(3, "x")))
