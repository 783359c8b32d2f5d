"""Prefetching of batches, and compilation of blocks."""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from fedvisage.nn.compute import (
    Prefetcher,
    StreamEvent,
    blocks_of,
    compilation_failure,
    compile_blocks,
    prefetch,
    prefetcher_of,
    to_device,
)
from fedvisage.nn.resnet import ResNet18, pooled_features, resnet18


class RecordingPrefetcher(Prefetcher):
    """A prefetcher that records its calls."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.notes: list[str] = []

    def record_event(self) -> StreamEvent:
        self.notes.append("event")
        return sum(note == "event" for note in self.notes)

    def join(self, event: StreamEvent, tensors: Iterable[Tensor]) -> None:
        self.notes.append(f"join {event} {[int(one) for one in tensors]}")


def run_batches(ahead: int) -> tuple[list[str], list[int]]:
    """Return the events of three batches in order, and the batches."""
    prefetcher, actual = RecordingPrefetcher(ahead), []

    def make(key: int) -> Tensor:
        prefetcher.notes.append(f"make {key}")
        return torch.tensor(key)

    for batch in prefetch(range(3), make, lambda one: [one], prefetcher):
        prefetcher.notes.append(f"step {int(batch)}")
        actual.append(int(batch))
    return prefetcher.notes, actual


@pytest.mark.parametrize(
    ("ahead", "order"),
    [(0, "make 0, step 0, make 1, step 1, make 2, step 2"), (1, "make 0, make 1, step 0, make 2, step 1, step 2")],
)
def test_batches_are_prepared_on_demand_or_before_the_step_of_the_previous_one(ahead: int, order: str) -> None:
    notes, actual = run_batches(ahead)
    assert actual == [0, 1, 2]
    assert [note for note in notes if note.startswith(("make", "step"))] == order.split(", ")


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_step_waits_only_for_its_own_batch(ahead: int) -> None:
    notes, _ = run_batches(ahead)
    assert [note for note in notes if note.startswith("join")] == ["join 1 [0]", "join 2 [1]", "join 3 [2]"]
    assert all(notes.index(f"join {number + 1} [{number}]") < notes.index(f"step {number}") for number in range(3))


def test_cpu_has_no_prefetcher_and_makes_no_copy() -> None:
    value, here = torch.ones(3), torch.device("cpu")
    assert type(prefetcher_of(here)) is Prefetcher
    assert to_device(value, here) is value


# Compilation of blocks.


def test_stages_of_a_resnet_are_compiled_and_parts_called_separately_are_not() -> None:
    net = nn.ModuleDict({"model": resnet18(ResNet18(width=8), "rgb")})
    actual = list(blocks_of(net))
    assert actual == [net["model"].get_submodule(f"layer{number}") for number in range(1, 5)]


def test_compiled_blocks_are_members_of_lists_or_the_whole_part() -> None:
    inner = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    net = nn.ModuleDict({"listed": nn.ModuleDict({"one": nn.ModuleList([inner])}), "plain": nn.Linear(2, 1)})
    assert list(blocks_of(net)) == [inner, net["plain"]]


def test_other_errors_are_not_compilation_failures() -> None:
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
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
