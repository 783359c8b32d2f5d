"""Mutations of a hostile site's reply: of one tensor, of names, of the envelope, of the bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from campaigns.hostile.case import pick
from torch import Tensor

Message = dict[str, Any]
Mutation = Callable[[Message, np.random.Generator], str]
"""Changes a message and returns the name of the change."""

ODD_NAMES = (
    "",
    "model",
    "../../up",
    "a" * 100_000,
    "\x1b[2Jgone",
    "\ud800",
    "examples\n",
    "net/",
    ".",
    "loss.scale",
    "\u202egnp",
)
VALUES = (
    float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1.0000001e6, -1e6, 1e-45, -0.0, -1.0, 2.0**53 + 2,
    2.0**62, -(2.0**62), 256.0, 127.0, -128.0,
)  # fmt: skip
DTYPES = (
    torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool, torch.complex64,
)  # fmt: skip


class CustomTensor(torch.Tensor):
    """A tensor class whose methods a sender could define."""


def pick_tensor(message: Message, draws: np.random.Generator) -> str:
    """Draw the name of a tensor that earlier mutations have left a plain tensor."""
    names = [name for name in sorted(message) if type(message[name]) is Tensor and _can_be_changed(message[name])]
    return pick(draws, names) if names else ""


def _can_be_changed(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided and tensor.device.type == "cpu" and not (tensor.is_nested or tensor.is_quantized)
    )


def on_tensor(change: Callable[[Tensor, np.random.Generator], Any]) -> Mutation:
    """Turn a change of one tensor into a mutation of a message."""

    def mutate(message: Message, draws: np.random.Generator) -> str:
        if (name := pick_tensor(message, draws)) and not message[name].is_nested:
            try:
                message[name] = change(message[name].clone(), draws)
            except (RuntimeError, TypeError, ValueError, IndexError, MemoryError):
                message[name] = None  # this tensor cannot be changed so
        return change.__name__

    mutate.__name__ = change.__name__
    return mutate


def set_value(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    wide = tensor.to(torch.float64).reshape(-1)
    wide[int(draws.integers(len(wide)))] = pick(draws, VALUES)
    return wide.reshape(tensor.shape).to(tensor.dtype)


def flip_bits(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    raw = tensor.reshape(-1).contiguous().view(torch.uint8)
    for _ in range(int(draws.integers(1, 5))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    return raw.view(tensor.dtype).reshape(tensor.shape)


def scale(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    return tensor * pick(draws, (-1, 0, 1000, 10**7))


def change_type(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    return tensor.to(pick(draws, DTYPES))


def change_shape(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    flat = tensor.reshape(-1)
    forms = (tensor[None], tensor[..., None], flat, flat[:1], flat[:0], flat[0], torch.cat([flat, flat]), tensor.T)
    return pick(draws, forms)


def add_dimensions(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    return tensor.reshape((1,) * int(draws.integers(5, 64)) + tuple(tensor.shape))


def stretch(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    """Expand a tensor to petabytes without memory."""
    return tensor.reshape(-1)[:1].reshape(()).expand(1 << int(draws.integers(20, 50)), *tensor.shape[1:])


def replace_by_special(tensor: Tensor, draws: np.random.Generator) -> Any:
    makes: list[Callable[[], Any]] = [
        lambda: tensor.to_sparse(), lambda: tensor.to("meta"), lambda: tensor.requires_grad_(),
        lambda: CustomTensor(tensor), lambda: torch.nn.Parameter(tensor, requires_grad=False), lambda: tensor.numpy(),
        lambda: tensor.tolist(),
        lambda: torch.nested.nested_tensor([tensor, tensor]), lambda: torch.conj(tensor.to(torch.complex64)),
        lambda: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8), lambda: None, lambda: b"bytes",
        lambda: torch._neg_view(tensor), lambda: 7, lambda: tensor.T.contiguous().T,
        lambda: torch.nested.nested_tensor([tensor.reshape(-1)], layout=torch.jagged),
        lambda: tensor.reshape(-1).repeat(2)[::2].reshape(tensor.shape),
    ]  # fmt: skip
    return pick(draws, makes)()


def remove(message: Message, draws: np.random.Generator) -> str:
    message.pop(pick_tensor(message, draws), None)
    return "missing"


def add(message: Message, draws: np.random.Generator) -> str:
    message[pick(draws, ODD_NAMES)] = torch.zeros(int(draws.integers(3)))
    return "extra"


def rename(message: Message, draws: np.random.Generator) -> str:
    if name := pick_tensor(message, draws):
        odd = (name.upper(), f"{name} ", f"{name}\0", f"x/{name}", f"{name}.scale", name.replace(".", "/", 1))
        message[pick(draws, (*odd, *ODD_NAMES))] = message.pop(name)
    return "renamed"


def exchange(message: Message, draws: np.random.Generator) -> str:
    one, other = pick_tensor(message, draws), pick_tensor(message, draws)
    if one and other:
        message[one], message[other] = message[other], message[one]
    return "exchanged"


def flood(message: Message, draws: np.random.Generator) -> str:
    message |= {f"more-{number}": torch.zeros(()) for number in range(2000)}
    return "flood"


def empty(message: Message, draws: np.random.Generator) -> str:
    message.clear()
    return "empty"


MESSAGE_MUTATIONS: tuple[Mutation, ...] = (
    *[on_tensor(set_value)] * 4, *[on_tensor(flip_bits)] * 2, on_tensor(scale), on_tensor(change_type),
    on_tensor(change_shape),
    on_tensor(add_dimensions), on_tensor(stretch), on_tensor(replace_by_special), on_tensor(replace_by_special),
    remove, add, rename, exchange, flood, empty,
)  # fmt: skip

TEXTS: tuple[Any, ...] = (
    "", None, 7, b"bytes", ["a"], {}, "x" * 100_000, "\x1b]0;title\x07\x1b[31mred", "line\nline\r", "\ud800",
    "\u202etxt",
    "round 1, train 1", "round 99, train 1", float("nan"), True,
)  # fmt: skip


def mutate_envelope(whole: dict[str, Any], draws: np.random.Generator) -> tuple[str, Any]:
    """Change the envelope of a reply; return the name of the change and the envelope."""
    header = whole["words"]
    way = int(draws.integers(9))
    if way == 0:
        return "no parcel", pick(draws, (None, 7, "text", b"\x00", [], [whole], {}, {"words": {}}, {"tensors": {}}))
    if way == 1:
        whole["words"] = pick(draws, (None, [], "words", 7, {}))
    elif way == 2:
        whole["tensors"] = pick(draws, (None, [], "tensors", 7, list(whole["tensors"]), {7: torch.zeros(1)}))
    elif way in (3, 4):
        header["ticket"] = pick(draws, TEXTS)
    elif way in (5, 6):
        header["failure"] = pick(draws, TEXTS)
    elif way == 7:
        header |= {"spent": pick(draws, (True, 1, "yes", None)), "failure": pick(draws, ("over", *TEXTS))}
    else:
        whole["tensors"] = dict(whole["tensors"]) | {pick(draws, (7, None, b"name", ("a",), 1.5)): torch.zeros(1)}
    return ("", "words", "tensors", "ticket", "ticket", "failure", "failure", "spent", "keys")[way], whole


def mutate_bytes(data: bytes, draws: np.random.Generator) -> tuple[str, bytes]:
    """Change a safetensors file: any bytes, its header, or the header's stated length."""
    raw = bytearray(data)
    header = int.from_bytes(raw[:8], "little") if len(raw) >= 8 else 0
    way = int(draws.integers(7))
    if way == 0:
        return "truncated", bytes(raw[: int(draws.integers(len(raw)))])
    if way == 1:
        return "longer", bytes(raw) + draws.bytes(int(draws.integers(1, 64)))
    if way == 2:
        raw[:8] = int(pick(draws, (0, 1, 2, header - 1, header + 1, 2**31, 2**62, 2**64 - 1))).to_bytes(8, "little")
        return "length of the header", bytes(raw)
    if way == 3 and header:
        for _ in range(int(draws.integers(1, 4))):
            raw[8 + int(draws.integers(header))] = int(draws.integers(256))
        return "bytes of the header", bytes(raw)
    if way == 4 and header:
        text = bytes(raw[8 : 8 + header]).decode("utf-8", "replace")
        old, new = pick(draws, (
            ("F32", "I64"), ("F32", "F64"), ("[", "[9223372036854775807,"), ("data_offsets", "offsets"), ("shape",
            "form"),
            ('"data_offsets":[0', '"data_offsets":[4'), ("{", "[" * 50_000), ("I64", "BOOL"), ("0", "-1"), ("F32",
            "F4"),
        ))  # fmt: skip
        changed = text.replace(old, new, 1).encode()
        return "words of the header", len(changed).to_bytes(8, "little") + changed + bytes(raw[8 + header :])
    if way == 5:
        return "other bytes", draws.bytes(int(draws.integers(0, 200)))
    for _ in range(int(draws.integers(1, 8))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    return "bytes", bytes(raw)
