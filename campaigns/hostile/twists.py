"""What a hostile site can do to a reply: to one tensor of it, to its names, to what it travels in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from campaigns.hostile.case import pick
from torch import Tensor

Message = dict[str, Any]
Twist = Callable[[Message, np.random.Generator], str]
"""Changes a message and returns what was done."""

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


class Own(torch.Tensor):
    """A tensor of a class of its own, which could answer anything."""


def some(message: Message, draws: np.random.Generator) -> str:
    """Draw one of a message's tensors; any may have been made something else by an earlier twist."""
    names = [name for name in sorted(message) if type(message[name]) is Tensor and _can_be_changed(message[name])]
    return pick(draws, names) if names else ""


def _can_be_changed(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided and tensor.device.type == "cpu" and not (tensor.is_nested or tensor.is_quantized)
    )


def on_tensor(change: Callable[[Tensor, np.random.Generator], Any]) -> Twist:
    """Make a twist of what is done to one tensor."""

    def twist(message: Message, draws: np.random.Generator) -> str:
        if (name := some(message, draws)) and not message[name].is_nested:
            try:
                message[name] = change(message[name].clone(), draws)
            except (RuntimeError, TypeError, ValueError, IndexError, MemoryError):
                message[name] = None  # this tensor cannot be made so
        return change.__name__

    twist.__name__ = change.__name__
    return twist


def value(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    wide = tensor.to(torch.float64).reshape(-1)
    wide[int(draws.integers(len(wide)))] = pick(draws, VALUES)
    return wide.reshape(tensor.shape).to(tensor.dtype)


def bits(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    raw = tensor.reshape(-1).contiguous().view(torch.uint8)
    for _ in range(int(draws.integers(1, 5))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    return raw.view(tensor.dtype).reshape(tensor.shape)


def scaled(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    return tensor * pick(draws, (-1, 0, 1000, 10**7))


def other_type(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    return tensor.to(pick(draws, DTYPES))


def other_shape(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    flat = tensor.reshape(-1)
    forms = (tensor[None], tensor[..., None], flat, flat[:1], flat[:0], flat[0], torch.cat([flat, flat]), tensor.T)
    return pick(draws, forms)


def many_dimensions(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    return tensor.reshape((1,) * int(draws.integers(5, 64)) + tuple(tensor.shape))


def stretched(tensor: Tensor, draws: np.random.Generator) -> Tensor:
    """A tensor of petabytes in one number's room."""
    return tensor.reshape(-1)[:1].reshape(()).expand(1 << int(draws.integers(20, 50)), *tensor.shape[1:])


def strange(tensor: Tensor, draws: np.random.Generator) -> Any:
    makes: list[Callable[[], Any]] = [
        lambda: tensor.to_sparse(), lambda: tensor.to("meta"), lambda: tensor.requires_grad_(), lambda: Own(tensor),
        lambda: torch.nn.Parameter(tensor, requires_grad=False), lambda: tensor.numpy(), lambda: tensor.tolist(),
        lambda: torch.nested.nested_tensor([tensor, tensor]), lambda: torch.conj(tensor.to(torch.complex64)),
        lambda: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8), lambda: None, lambda: b"bytes",
        lambda: torch._neg_view(tensor), lambda: 7, lambda: tensor.T.contiguous().T,
        lambda: torch.nested.nested_tensor([tensor.reshape(-1)], layout=torch.jagged),
        lambda: tensor.reshape(-1).repeat(2)[::2].reshape(tensor.shape),
    ]  # fmt: skip
    return pick(draws, makes)()


def missing(message: Message, draws: np.random.Generator) -> str:
    message.pop(some(message, draws), None)
    return "missing"


def extra(message: Message, draws: np.random.Generator) -> str:
    message[pick(draws, ODD_NAMES)] = torch.zeros(int(draws.integers(3)))
    return "extra"


def renamed(message: Message, draws: np.random.Generator) -> str:
    if name := some(message, draws):
        odd = (name.upper(), f"{name} ", f"{name}\0", f"x/{name}", f"{name}.scale", name.replace(".", "/", 1))
        message[pick(draws, (*odd, *ODD_NAMES))] = message.pop(name)
    return "renamed"


def exchanged(message: Message, draws: np.random.Generator) -> str:
    one, other = some(message, draws), some(message, draws)
    if one and other:
        message[one], message[other] = message[other], message[one]
    return "exchanged"


def flood(message: Message, draws: np.random.Generator) -> str:
    message |= {f"more-{number}": torch.zeros(()) for number in range(2000)}
    return "flood"


def empty(message: Message, draws: np.random.Generator) -> str:
    message.clear()
    return "empty"


MESSAGE: tuple[Twist, ...] = (
    *[on_tensor(value)] * 4, *[on_tensor(bits)] * 2, on_tensor(scaled), on_tensor(other_type), on_tensor(other_shape),
    on_tensor(many_dimensions), on_tensor(stretched), on_tensor(strange), on_tensor(strange),
    missing, extra, renamed, exchanged, flood, empty,
)  # fmt: skip

TEXTS: tuple[Any, ...] = (
    "", None, 7, b"bytes", ["a"], {}, "x" * 100_000, "\x1b]0;title\x07\x1b[31mred", "line\nline\r", "\ud800",
    "\u202etxt",
    "round 1, train 1", "round 99, train 1", float("nan"), True,
)  # fmt: skip


def parcel(whole: dict[str, Any], draws: np.random.Generator) -> tuple[str, Any]:
    """Change what a reply travels in, and return what was done beside what is left of it."""
    words = whole["words"]
    deed = int(draws.integers(9))
    if deed == 0:
        return "no parcel", pick(draws, (None, 7, "text", b"\x00", [], [whole], {}, {"words": {}}, {"tensors": {}}))
    if deed == 1:
        whole["words"] = pick(draws, (None, [], "words", 7, {}))
    elif deed == 2:
        whole["tensors"] = pick(draws, (None, [], "tensors", 7, list(whole["tensors"]), {7: torch.zeros(1)}))
    elif deed in (3, 4):
        words["ticket"] = pick(draws, TEXTS)
    elif deed in (5, 6):
        words["failure"] = pick(draws, TEXTS)
    elif deed == 7:
        words |= {"spent": pick(draws, (True, 1, "yes", None)), "failure": pick(draws, ("over", *TEXTS))}
    else:
        whole["tensors"] = dict(whole["tensors"]) | {pick(draws, (7, None, b"name", ("a",), 1.5)): torch.zeros(1)}
    return ("", "words", "tensors", "ticket", "ticket", "failure", "failure", "spent", "keys")[deed], whole


def spoil_bytes(data: bytes, draws: np.random.Generator) -> tuple[str, bytes]:
    """Change a safetensors file: anywhere, in its header, or in how long it says that this is."""
    raw = bytearray(data)
    header = int.from_bytes(raw[:8], "little") if len(raw) >= 8 else 0
    deed = int(draws.integers(7))
    if deed == 0:
        return "truncated", bytes(raw[: int(draws.integers(len(raw)))])
    if deed == 1:
        return "longer", bytes(raw) + draws.bytes(int(draws.integers(1, 64)))
    if deed == 2:
        raw[:8] = int(pick(draws, (0, 1, 2, header - 1, header + 1, 2**31, 2**62, 2**64 - 1))).to_bytes(8, "little")
        return "length of the header", bytes(raw)
    if deed == 3 and header:
        for _ in range(int(draws.integers(1, 4))):
            raw[8 + int(draws.integers(header))] = int(draws.integers(256))
        return "bytes of the header", bytes(raw)
    if deed == 4 and header:
        text = bytes(raw[8 : 8 + header]).decode("utf-8", "replace")
        old, new = pick(draws, (
            ("F32", "I64"), ("F32", "F64"), ("[", "[9223372036854775807,"), ("data_offsets", "offsets"), ("shape",
            "form"),
            ('"data_offsets":[0', '"data_offsets":[4'), ("{", "[" * 50_000), ("I64", "BOOL"), ("0", "-1"), ("F32",
            "F4"),
        ))  # fmt: skip
        made = text.replace(old, new, 1).encode()
        return "words of the header", len(made).to_bytes(8, "little") + made + bytes(raw[8 + header :])
    if deed == 5:
        return "other bytes", draws.bytes(int(draws.integers(0, 200)))
    for _ in range(int(draws.integers(1, 8))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    return "bytes", bytes(raw)
