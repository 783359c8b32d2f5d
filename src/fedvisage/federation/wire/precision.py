"""In which numbers activations and gradients travel: fp32, bf16, or int8 with a scale for each vector.

Weights travel as fp32 or bf16 (``federation.wire``), and are float32 again before anything is done with them. They are
rounded up or down at random: a site's update is often smaller than the gap between two bf16 numbers, and rounding to
the nearest would undo it in every round. What is asked of a finished model is asked of its very weights, in fp32.

int8 divides each vector along the last dimension (a token, a pseudo-class token, the gradient by either) by its
largest magnitude over 127. Gradients are rounded up or down at random, so that they are right on average: rounding to
the nearest would lose all that is small beside a vector's largest number, in every step again. What is declared,
checked and counted in the ledger is the encoded form: the codes and, for int8, their scales.
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
    tensors = {name: (shape, TYPES[form])}
    return tensors | ({f"{name}{SCALE}": ((*shape[:-1], 1), torch.float32)} if form == "int8" else {})


def bytes_of(shape: tuple[int, ...], form: Form) -> int:
    """Return how many bytes a value of this shape takes: the analytic minimum of a message that carries it."""
    sizes = fields("value", shape, form).values()
    return sum(torch.Size(dimensions).numel() * dtype.itemsize for dimensions, dtype in sizes)


def weights_in(message: Mapping[str, Tensor]) -> set[str]:
    """Return the names of tensors that belong to a part of a network: ``part.tensor``, where no ``part`` is a field.

    The scales beside an encoded field are named like that, too, and are none.
    """
    return {name for name in message if "." in name and name.partition(".")[0] not in message}


def narrowed(message: Message, names: set[str], generator: Callable[[str], Generator]) -> Message:
    """Return a message with the float32 tensors of these names as bf16, each with a stream of its own."""
    return {
        name: halved(value, generator(name)) if name in names and value.dtype == torch.float32 else value
        for name, value in message.items()
    }


def widened(message: Message, names: set[str]) -> Message:
    """Return a message with the tensors of these names in the types that networks have."""
    return {name: value.to(wide(value.dtype)) if name in names else value for name, value in message.items()}


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in a network of what travels as this one."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def halved(value: Tensor, generator: Generator) -> Tensor:
    """Return float32 numbers as bf16, rounded up or down at random, so that they are right on average.

    A bf16 number is the upper half of a float32's bits: what is added to the lower half carries over as often as it
    should.
    """
    drawn = torch.randint(0, 1 << 16, value.shape, generator=generator, dtype=torch.int32)
    rounded = ((value.view(torch.int32) + drawn) & -(1 << 16)).view(torch.float32)
    return torch.where(value.isfinite(), rounded, value).to(torch.bfloat16)
