"""Which device, number format and layout a run computes in, decided once and recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from fedvisage.base.errors import UserError

# What a device does beside its steps: the next batch is prepared while it still works on the last one.
#
# A GPU works through what it was given while this process goes on. So reading, copying and changing the images of
# the
# next batch cost no time of their own, if nothing in a step waits for the device, if images are copied out of memory
# that
# the device can read by itself, and if their copies do not queue behind the step: they go into a stream of their
# own. A
# CPU has nothing that works beside it, and prepares each batch when it is wanted. Both go the same way through
# :func:`prepared`, and what is prepared is the same, as it follows from numbers and not from when it is done.


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


# The blocks of networks, compiled one by one by torch.compile.
#
# What methods call are parts of a network, and often pieces of these: the stages of a ResNet without its last layer,
# a
# transformer up to some block. So what is compiled are the modules that lie directly in a part; and as many of them
# are
# alike, this takes less time than a whole network would. Weights keep their names, and copies are plain again.


LISTS = (nn.ModuleList, nn.ModuleDict)
"""Modules that only hold others."""


def compile_blocks(net: nn.ModuleDict) -> None:
    """Have each block compiled when it is first called."""
    for block in blocks_of(net):
        block.compile()


def blocks_of(net: nn.ModuleDict) -> Iterator[nn.Module]:
    """Return the modules of each part that hold others, with weights; the part, where there are none."""
    for part in net.values():
        yield from list(_within(part)) or [part]


def _within(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, LISTS):
            yield from _within(child)
        elif next(child.children(), None) is not None and next(child.parameters(), None) is not None:
            yield child


def uncompiled(error: Exception) -> str | None:
    """Return why something could not be compiled; none if an error is about something else."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


Layout = Literal["first", "last"]
"""Where the channels of images and convolutions lie in memory."""

LAYOUTS: dict[Layout, torch.memory_format] = {"first": torch.contiguous_format, "last": torch.channels_last}
LAYOUT = LAYOUTS["last"]
"""Where nothing else was decided: CUDA and bf16 want the channels last, and narrow networks on a CPU gain as well."""
NARROW = 16
"""Channels that oneDNN's AVX-512 kernels process at once; see :func:`overruns`."""


@dataclass(frozen=True)
class Compute:
    """Device, number format and layout of all forward and backward passes."""

    device: torch.device
    half: bool
    layout: torch.memory_format = LAYOUT
    side: Side = field(default_factory=Side, compare=False)
    """Where the next batch is prepared."""

    def bring(self, value: Tensor) -> Tensor:
        """Bring a tensor to the device without waiting for it."""
        return brought(value, self.device)

    def place(self, net: nn.Module) -> None:
        """Bring a network to the device, in the layout of its images; single layers that would crash in it differ."""
        net.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload]
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d) and overruns(layer.weight, layer.stride):
                layer.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
                if _with_channels_first not in layer._forward_pre_hooks.values():
                    layer.register_forward_pre_hook(_with_channels_first)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.half else nullcontext()


def overruns(weight: Tensor, stride: tuple[int, ...]) -> bool:
    """Return whether the gradient of a convolution's weights writes past its buffer with the channels last.

    oneDNN's kernel for 1×1 convolutions with a stride does so on a CPU if the input has fewer channels than the kernel
    processes at once (docs/decisions/0033-narrow-convolutions.md). With the channels first the gradient is correct.
    """
    return weight.device.type == "cpu" and weight.shape[2:] == (1, 1) and max(stride) > 1 and weight.shape[1] < NARROW


def _with_channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Lay out the inputs of one layer; a function of the module, so that copies of a network share it."""
    return tuple(values.contiguous() for values in inputs)


def has_fast_bf16(device: torch.device) -> bool:
    """Say whether bf16 pays on this device: CPUs need AMX, without it bf16 is no faster than fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_amx_tile_supported())


def choose(device: str, precision: str, layout: Layout = "last") -> Compute:
    """Resolve ``auto`` to what this machine has."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("recipe.runtime.device", f"{device} was asked for, but this torch sees no CUDA device")
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    where = torch.device(name)
    half = has_fast_bf16(where) if precision == "auto" else precision == "bf16"
    return Compute(where, half, LAYOUTS[layout], side_of(where))
