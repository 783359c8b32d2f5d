"""Compute settings of a run (device, number format, layout), prefetching of batches, and compilation of blocks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from fedvisage.base.errors import UserError

Key = TypeVar("Key")
Value = TypeVar("Value")

StreamEvent = object
"""The progress of the prefetching stream at some point."""


class Prefetcher:
    """No prefetching: each batch is prepared on demand."""

    ahead = 0
    """Number of batches to prepare in advance."""

    def side_stream(self) -> AbstractContextManager[object]:
        """Return the context in which a batch is prepared."""
        return nullcontext()

    def record_event(self) -> StreamEvent:
        """Return the current progress."""
        return None

    def join(self, event: StreamEvent, tensors: Iterable[Tensor]) -> None:
        """Make the following steps wait for the work up to an event; the steps own these tensors from now on."""


class StreamPrefetcher(Prefetcher):
    """Prefetching in a separate CUDA stream while the current stream works on a step."""

    ahead = 1

    def __init__(self, device: torch.device) -> None:
        """Create a stream on the device."""
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def side_stream(self) -> AbstractContextManager[object]:
        """Return a context that queues operations in the separate stream."""
        return torch.cuda.stream(self._stream)

    def record_event(self) -> StreamEvent:
        """Record an event in the separate stream."""
        return self._stream.record_event()

    def join(self, event: StreamEvent, tensors: Iterable[Tensor]) -> None:
        """Make the current stream wait, but not the process, and keep the tensors' memory until it has used them."""
        usual = torch.cuda.current_stream(self._device)
        assert isinstance(event, torch.cuda.Event)
        usual.wait_event(event)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(usual)


@cache
def prefetcher_of(device: torch.device) -> Prefetcher:
    """Return the prefetcher of a device; all callers share it."""
    return StreamPrefetcher(device) if device.type == "cuda" else Prefetcher()


def prefetch(
    keys: Iterable[Key],
    make: Callable[[Key], Value],
    tensors: Callable[[Value], Iterable[Tensor]],
    prefetcher: Prefetcher,
) -> Iterator[Value]:
    """Yield `make(key)` for each key in order; with a prefetcher, the next ones are already in progress.

    A GPU works through queued operations while the Python process continues. Reading, copying and augmenting the images
    of the next batch therefore take no extra time under three conditions: nothing in a step waits for the device,
    images are copied from pinned memory, and the copies do not queue behind the step, so they use their own stream. A
    CPU cannot prefetch and prepares each batch on demand. Both get identical batches, because a batch depends on
    numbers and not on the time of its preparation.
    """
    waiting: deque[tuple[Value, StreamEvent]] = deque()

    def hand_out() -> Value:
        item, event = waiting.popleft()
        prefetcher.join(event, tensors(item))
        return item

    # Hand out the oldest item only when enough later ones are in progress.
    for key in keys:
        with prefetcher.side_stream():
            item = make(key)
            waiting.append((item, prefetcher.record_event()))
        if len(waiting) > prefetcher.ahead:
            yield hand_out()
    while waiting:
        yield hand_out()


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device asynchronously; copies to a GPU start from pinned memory."""
    if device.type == "cuda" and not value.is_cuda:
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


LISTS = (nn.ModuleList, nn.ModuleDict)
"""Modules that are only containers of others."""


def compile_blocks(net: nn.ModuleDict) -> None:
    """Make torch.compile compile each block on its first call.

    Methods call parts of a network, and often pieces of parts: the stages of a ResNet without its last layer, or a
    transformer up to some block. Compilation therefore applies to the modules directly inside a part. Many of these are
    alike, so it also takes less time than compiling a whole network. Weights keep their names, and copies are not
    compiled.
    """
    for block in blocks_of(net):
        block.compile()


def blocks_of(net: nn.ModuleDict) -> Iterator[nn.Module]:
    """Yield the modules of each part that have submodules and weights, or the part itself if it has none."""
    for part in net.values():
        yield from list(_nested_blocks(part)) or [part]


def _nested_blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, LISTS):
            yield from _nested_blocks(child)
        elif next(child.children(), None) is not None and next(child.parameters(), None) is not None:
            yield child


def compilation_failure(error: Exception) -> str | None:
    """Return the reason of a compilation failure; None if the error has another cause."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


Layout = Literal["first", "last"]
"""Position of the channels of images and convolutions in memory."""

LAYOUTS: dict[Layout, torch.memory_format] = {"first": torch.contiguous_format, "last": torch.channels_last}
LAYOUT = LAYOUTS["last"]
"""Default layout: CUDA and bf16 prefer the channels last, and narrow networks on a CPU are faster with it, too."""
NARROW = 16
"""Number of channels that oneDNN's AVX-512 kernels process at once; see :func:`has_gradient_overrun`."""


@dataclass(frozen=True)
class Compute:
    """Device, number format and layout of all forward and backward passes."""

    device: torch.device
    half: bool
    layout: torch.memory_format = LAYOUT
    prefetcher: Prefetcher = field(default_factory=Prefetcher, compare=False)
    """The prefetcher of the device."""

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """The number format, as recipes and the environment record name it."""
        return "bf16" if self.half else "fp32"

    def bring(self, value: Tensor) -> Tensor:
        """Copy a tensor to the device asynchronously."""
        return to_device(value, self.device)

    def place(self, net: nn.Module) -> None:
        """Move a network to the device in the layout of its images, except layers that would crash in that layout."""
        net.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload]
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d) and has_gradient_overrun(layer.weight, layer.stride):
                layer.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
                if _with_channels_first not in layer._forward_pre_hooks.values():
                    layer.register_forward_pre_hook(_with_channels_first)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.half else nullcontext()


def has_gradient_overrun(weight: Tensor, stride: tuple[int, ...]) -> bool:
    """Return True if the weight gradient of a convolution writes past its buffer with the channels last.

    oneDNN's kernel for strided 1×1 convolutions does so on a CPU if the input has fewer channels than the kernel
    processes at once (docs/decisions/0033-narrow-convolutions.md). With the channels first the gradient is correct.
    """
    return weight.device.type == "cpu" and weight.shape[2:] == (1, 1) and max(stride) > 1 and weight.shape[1] < NARROW


def _with_channels_first(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the inputs of a layer to channels first; a module-level function, so copies of a network can share it."""
    return tuple(values.contiguous() for values in inputs)


def has_fast_bf16(device: torch.device) -> bool:
    """Return True if ``precision: auto`` is bf16 on this device; CPUs need AMX for that, GPUs units for bf16.

    Training is faster with AVX512_BF16, too, but FedPAD's HTER is then higher at demo size
    (docs/decisions/0041-layout-rule.md).
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported())


NONDETERMINISTIC = " does not have a deterministic implementation"
"""The middle of torch's error for an operation that cannot be repeated bit by bit."""


def choose_algorithms(deterministic: bool) -> None:
    """Choose the algorithms of this process: exact fp32 in convolutions on GPUs, and repeatable ones if requested.

    Call this before the first operation on a GPU, because cuBLAS reads its setting only once. A recipe without
    ``runtime.deterministic`` turns repeatable algorithms off for the process.
    """
    torch.backends.cudnn.allow_tf32 = False
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call imports slow modules
        torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def report_nondeterminism() -> Iterator[None]:
    """Turn torch's error for an operation without a repeatable algorithm into a user's error."""
    try:
        yield
    except RuntimeError as error:
        operation, middle, _ = str(error).partition(NONDETERMINISTIC)
        if not middle:
            raise
        wrong = f"{operation} has no deterministic algorithm on this device; leave the key out"
        raise UserError("recipe.runtime.deterministic", wrong) from error


def gpus_of(device: str) -> list[str]:
    """Return the GPUs that a recipe's device stands for: all of this machine for ``auto`` and ``cuda``."""
    if device in ("auto", "cuda"):
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [] if device == "cpu" else [device]


def device_of_worker(device: str, number: int) -> str:
    """Return the device of a worker: the GPUs in turn, or the CPU."""
    gpus = gpus_of(device)
    return gpus[number % len(gpus)] if gpus else device


def resolve_compute(device: str, precision: str, layout: Layout = "last") -> Compute:
    """Resolve ``auto`` for this machine."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("recipe.runtime.device", f"{device} was requested, but PyTorch finds no CUDA device")
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        wrong = f"{device} was requested, but the last GPU here is cuda:{torch.cuda.device_count() - 1}"
        raise UserError("recipe.runtime.device", wrong)
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    target_device = torch.device(name)
    half = has_fast_bf16(target_device) if precision == "auto" else precision == "bf16"
    return Compute(target_device, half, LAYOUTS[layout], prefetcher_of(target_device))
