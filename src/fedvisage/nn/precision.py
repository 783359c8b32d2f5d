"""Which device, number format and layout a run computes in, decided once and recorded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fedvisage.errors import UserError
from fedvisage.nn.ahead import Side, brought, side_of

Layout = Literal["first", "last"]
"""Where the channels of images and convolutions lie in memory."""

LAYOUTS: dict[Layout, torch.memory_format] = {"first": torch.contiguous_format, "last": torch.channels_last}
LAYOUT = LAYOUTS["last"]
"""Where nothing else was decided: CUDA and bf16 want the channels last, and narrow networks on a CPU gain as well."""


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
        """Bring a network to the device, in the layout of its images."""
        net.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.half else nullcontext()


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
