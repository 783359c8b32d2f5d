"""In which numbers activations and gradients travel: fp32, bf16, or int8 with a scale for each vector.

int8 divides each vector along the last dimension (a token, a pseudo-class token, the gradient by either) by its
largest magnitude over 127. Gradients are rounded up or down at random, so that they are right on average: rounding to
the nearest would lose all that is small beside a vector's largest number, in every step again. What is declared,
checked and counted in the ledger is the encoded form: the codes and, for int8, their scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Generator, Tensor

from fedvisage.federation.method import Message

Form = Literal["fp32", "bf16", "int8"]
TYPES: Mapping[Form, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
LARGEST = 127
"""The largest code; its negative is the smallest, and -128 is not used."""

SCALE = ".scale"


def pack(name: str, value: Tensor, form: Form, generator: Generator | None = None) -> Message:
    """Return a tensor as it travels; with a generator its codes are rounded at random, to the right mean."""
    value = value.detach()
    if form != "int8":
        return {name: value if form == "fp32" else value.to(TYPES[form])}
    scale = value.abs().amax(dim=-1, keepdim=True) / LARGEST
    exact = value / scale.clamp_min(torch.finfo(torch.float32).tiny)
    if generator is None:
        codes = exact.round()
    else:
        drawn = torch.rand(value.shape, generator=generator, device=generator.device).to(value.device)
        codes = (exact + drawn).floor()
    return {name: codes.clamp(-LARGEST, LARGEST).to(torch.int8), f"{name}{SCALE}": scale}


def unpack(name: str, message: Mapping[str, Tensor]) -> Tensor:
    """Return what was packed, in float32; what came as fp32 is returned as it is."""
    value, scale = message[name], message.get(f"{name}{SCALE}")
    if scale is not None:
        return value.float() * scale
    return value.float() if value.dtype == torch.bfloat16 else value


def fields(name: str, shape: tuple[int, ...], form: Form) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of every tensor that a value of this shape travels as."""
    found = {name: (shape, TYPES[form])}
    return found | ({f"{name}{SCALE}": ((*shape[:-1], 1), torch.float32)} if form == "int8" else {})


def bytes_of(shape: tuple[int, ...], form: Form) -> int:
    """Return how many bytes a value of this shape takes: the analytic minimum of a message that carries it."""
    sizes = fields("value", shape, form).values()
    return sum(torch.Size(dimensions).numel() * dtype.itemsize for dimensions, dtype in sizes)
