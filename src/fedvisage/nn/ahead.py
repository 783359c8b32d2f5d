"""What a device does beside its steps: the next batch is prepared while it still works on the last one.

A GPU works through what it was given while this process goes on. So reading, copying and changing the images of the
next batch cost no time of their own, if nothing in a step waits for the device, if images are copied out of memory that
the device can read by itself, and if their copies do not queue behind the step: they go into a stream of their own. A
CPU has nothing that works beside it, and prepares each batch when it is wanted. Both go the same way through
:func:`prepared`, and what is prepared is the same, as it follows from numbers and not from when it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")
Made = TypeVar("Made")

Mark = object
"""How far what works beside the steps has come."""


class Side:
    """Nothing works beside the steps: all is done when it is asked for."""

    ahead = 0
    """How many batches are prepared before they are wanted."""

    def beside(self) -> AbstractContextManager[object]:
        """Return the context in which a batch is prepared."""
        return nullcontext()

    def mark(self) -> Mark:
        """Remember how far it has come."""
        return None

    def join(self, mark: Mark, tensors: Iterable[Tensor]) -> None:
        """Let steps wait for what was done up to a mark; these tensors are theirs from now on."""


class SideStream(Side):
    """A stream of a GPU's, which works on the next batch while the usual one works on a step."""

    ahead = 1

    def __init__(self, device: torch.device) -> None:
        """Take a stream of the device."""
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def beside(self) -> AbstractContextManager[object]:
        """Put what follows into the stream."""
        return torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        """Put an event into the stream."""
        return self._stream.record_event()

    def join(self, mark: Mark, tensors: Iterable[Tensor]) -> None:
        """Let the usual stream wait, and keep the tensors' memory until it has used them; this process goes on."""
        usual = torch.cuda.current_stream(self._device)
        assert isinstance(mark, torch.cuda.Event)
        usual.wait_event(mark)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(usual)


@cache
def side_of(device: torch.device) -> Side:
    """Return what works beside the steps of a device, which all who use it share."""
    return SideStream(device) if device.type == "cuda" else Side()


def prepared(
    keys: Iterable[Key], make: Callable[[Key], Made], tensors: Callable[[Made], Iterable[Tensor]], side: Side
) -> Iterator[Made]:
    """Make something of each key, in order; where something works beside the steps, the next ones are under way."""
    waiting: deque[tuple[Made, Mark]] = deque()
    for key in keys:
        with side.beside():
            made = make(key)
            waiting.append((made, side.mark()))
        if len(waiting) > side.ahead:
            yield _handed_out(waiting, tensors, side)
    while waiting:
        yield _handed_out(waiting, tensors, side)


def _handed_out(waiting: deque[tuple[Made, Mark]], tensors: Callable[[Made], Iterable[Tensor]], side: Side) -> Made:
    made, mark = waiting.popleft()
    side.join(mark, tensors(made))
    return made


def brought(value: Tensor, device: torch.device) -> Tensor:
    """Bring a tensor to a device without waiting for it: to a GPU out of memory that is locked in its place."""
    if device.type == "cuda" and not value.is_cuda:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)
