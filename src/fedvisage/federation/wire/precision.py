"""Number formats on the wire: fp32, bf16, or int8 with one scale per vector.

Weights travel as fp32 or bf16 (``federation.wire``), and become float32 again before any use. Rounding to bf16 is
stochastic: a site's update is often smaller than the gap between two bf16 numbers, and rounding to the nearest would
undo it in every round. Calls about a finished model use its exact weights, in fp32.

int8 divides each vector along the last dimension (a token, a pseudo-class token, or the gradient with respect to
either) by its largest magnitude over 127. Rounding of gradients is stochastic, so that they are right on average:
rounding to the nearest would lose all values that are small relative to a vector's largest number, again in every step.
Declarations, checks and the ledger concern the encoded form: the codes and, for int8, their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Generator, Tensor

from fedvisage.federation.wire.message import Message

Form = Literal["fp32", "bf16", "int8"]
TYPES: Mapping[Form, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
LARGEST = 127
"""The largest code; its negative is the smallest, and -128 is not used."""

SCALE = ".scale"


def pack(name: str, value: Tensor, form: Form, generator: Generator | None = None) -> Message:
    """Return a tensor in its wire format; with a generator, its codes are rounded stochastically, without bias."""
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
    """Return a packed tensor in float32; fp32 tensors are returned unchanged."""
    value, scale = message[name], message.get(f"{name}{SCALE}")
    if scale is not None:
        return value.float() * scale
    return value.float() if value.dtype == torch.bfloat16 else value


def fields(name: str, shape: tuple[int, ...], form: Form) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of each wire tensor of a value of this shape."""
    tensors = {name: (shape, TYPES[form])}
    return tensors | ({f"{name}{SCALE}": ((*shape[:-1], 1), torch.float32)} if form == "int8" else {})


def weights_in(message: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors that belong to a part of a network: ``part.tensor``, where no ``part`` is a field.

    Scales of encoded fields are named like that, too, but belong to no part.
    """
    return {name for name in message if "." in name and name.partition(".")[0] not in message}


def narrow_message(message: Message, generator: Callable[[str], Generator]) -> Message:
    """Return a message with the float32 weights as bf16, each with its own stream."""
    names = weights_in(message)
    return {
        name: to_bf16(value, generator(name)) if name in names and value.dtype == torch.float32 else value
        for name, value in message.items()
    }


def widen_message(message: Message) -> Message:
    """Return a message with the weights in the types of networks."""
    names = weights_in(message)
    return {name: value.to(wide_type(value.dtype)) if name in names else value for name, value in message.items()}


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """Return the network's type of values that travel in this type."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def to_bf16(value: Tensor, generator: Generator) -> Tensor:
    """Return float32 numbers as bf16 with stochastic rounding, so that they are right on average.

    A bf16 number is the upper half of a float32's bits: a random addition to the lower half carries over with the right
    probability.
    """
    drawn = torch.randint(0, 1 << 16, value.shape, generator=generator, dtype=torch.int32)
    rounded = ((value.view(torch.int32) + drawn) & -(1 << 16)).view(torch.float32)
    return torch.where(value.isfinite(), rounded, value).to(torch.bfloat16)
