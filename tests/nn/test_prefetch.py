"""Batches are prepared before they are wanted where a device works beside this process, and are the same ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from fedvisage.nn.compute import Prefetcher, StreamEvent, prefetch, prefetcher_of, to_device


class Noted(Prefetcher):
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
    """Go through three batches, and return all that happened, in order, and what was handed out."""
    prefetcher, actual = Noted(ahead), []

    def make(key: int) -> Tensor:
        prefetcher.notes.append(f"make {key}")
        return torch.tensor(key)

    for batch in prefetch(range(3), make, lambda one: [one], prefetcher):
        prefetcher.notes.append(f"step {int(batch)}")
        actual.append(int(batch))
    return prefetcher.notes, actual


def test_without_a_prefetcher_batches_are_prepared_on_demand() -> None:
    notes, actual = run_batches(0)
    assert actual == [0, 1, 2]
    assert [note for note in notes if note.startswith(("make", "step"))] == [
        "make 0",
        "step 0",
        "make 1",
        "step 1",
        "make 2",
        "step 2",
    ]


def test_prefetcher_prepares_the_next_batch_before_a_step() -> None:
    notes, actual = run_batches(1)
    assert actual == [0, 1, 2]
    assert [note for note in notes if note.startswith(("make", "step"))] == [
        "make 0",
        "make 1",
        "step 0",
        "make 2",
        "step 1",
        "step 2",
    ]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_step_waits_only_for_its_own_batch(ahead: int) -> None:
    notes, _ = run_batches(ahead)
    assert [note for note in notes if note.startswith("join")] == ["join 1 [0]", "join 2 [1]", "join 3 [2]"]
    assert all(notes.index(f"join {number + 1} [{number}]") < notes.index(f"step {number}") for number in range(3))


def test_cpu_has_no_prefetcher_and_makes_no_copy() -> None:
    value, here = torch.ones(3), torch.device("cpu")
    assert type(prefetcher_of(here)) is Prefetcher
    assert to_device(value, here) is value
