"""Which device, number format and layout a run computes in, decided once and recorded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedvisage.errors import UserError
from fedvisage.nn.ahead import Side, brought, side_of

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
