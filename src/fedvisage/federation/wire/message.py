"""Messages: named tensors, their safetensors encoding and digest; and the interface of transports that carry them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from weakref import ReferenceType, ref

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

Message = dict[str, Tensor]
"""Named tensors. A number is a tensor without dimensions, so one set of checks covers all values."""


class MalformedMessage(Exception):
    """Bytes that do not form a message: truncated, with an oversized header, or of an unknown type."""


def plain(tensor: Tensor) -> Tensor:
    """Return a detached, contiguous copy on the CPU, the only form of tensors in messages."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def is_plain(value: object) -> bool:
    """Return whether a value has the form of tensors in messages, or one that is read as easily."""
    if type(value) is not Tensor or value.layout != torch.strided or value.device.type != "cpu":
        return False
    lazy = value.is_neg() or value.is_conj()  # the memory does not contain the sign yet
    return not (lazy or value.is_nested or value.is_quantized or value.requires_grad)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Message:
    """Return the tensors whose names begin with a prefix, with the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def state_of(net: nn.ModuleDict, *parts: str) -> Message:
    """Return copies of all weights and buffers of some parts, named ``part.tensor``."""
    return {name: plain(value) for part in parts for name, value in tensors_of(net[part], f"{part}.").items()}


def load_parts(net: nn.ModuleDict, message: Mapping[str, Tensor]) -> None:
    """Load a message's tensors into the parts of a network; a part in the message must be complete."""
    for name, part in net.items():
        state = under(f"{name}.", message)
        if not state:
            continue
        own = tensors_of(part)
        # A state of other names or shapes is left to the part itself, which may refuse it.
        if own.keys() != state.keys() or any(own[key].shape != value.shape for key, value in state.items()):
            part.load_state_dict(state)
            continue
        with torch.no_grad():  # load_state_dict takes several times as long for small networks
            for key, value in state.items():
                own[key].copy_(value)


def tensors_of(module: nn.Module, place: str = "") -> Message:
    """Return the tensors of a module's state by name, not copies; ``state_dict`` takes four times as long."""
    tensors: Message = {f"{place}{name}": value for name, value in module._parameters.items() if value is not None}
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            tensors[f"{place}{name}"] = buffer
    for name, child in module._modules.items():
        if child is not None:
            tensors |= tensors_of(child, f"{place}{name}.")
    return tensors


def encode(message: Message) -> bytes:
    """Return a message in the safetensors format."""
    return write_tensors({name: tensor.contiguous() for name, tensor in message.items()})


def decode(data: bytes) -> Message:
    """Return the message in these bytes; incomplete or invalid bytes raise :class:`MalformedMessage`."""
    try:
        return read_tensors(data)
    except (SafetensorError, KeyError, ValueError, OverflowError, RuntimeError) as error:
        raise MalformedMessage(str(error)) from error


def size_of(tensors: Iterable[Tensor]) -> int:
    """Return the number of bytes of the values."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class LastMessage:
    """Recognises the message that it was given last, without keeping it in memory.

    A message is the same if it has the same tensor objects and no in-place change has happened since. Many sites ask
    about the same model, and in a simulation the server receives the tensors that the site has checked.
    """

    def __init__(self) -> None:
        self._tensors = dict[str, tuple[ReferenceType[Tensor], int]]()

    def remember(self, message: Message) -> None:
        """Remember a message instead of the previous one."""
        self._tensors = {name: (ref(value), _changes(value)) for name, value in message.items()}

    def is_same(self, message: Message) -> bool:
        """Return whether a message is the remembered one; an empty message never is."""
        if not message or message.keys() != self._tensors.keys():
            return False
        return all(
            (value := known()) is not None and value is message[name] and _changes(value) == changes
            for name, (known, changes) in self._tensors.items()
        )


class Digests:
    """A cache of the last message's digest."""

    def __init__(self) -> None:
        self._digest, self._last = "", LastMessage()

    def of(self, message: Message) -> str:
        """Return a message's digest, from the cache if possible."""
        if not self._last.is_same(message):
            self._digest = digest_of(message)
            self._last.remember(message)
        return self._digest


def _changes(value: Tensor) -> int:
    """Return the number of a tensor's in-place changes; torch does not count them for inference tensors."""
    return 0 if value.is_inference() else value._version


def digest_of(message: Message) -> str:
    """Return SHA-256 over names, types, shapes and values in the order of names."""
    total = hashlib.sha256()
    for name in sorted(message):
        tensor = message[name].detach().cpu()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        values = tensor.contiguous()  # NumPy's reshape would keep a stride of one dimension, which hashlib refuses
        if values.dtype.is_floating_point and values.dtype not in (torch.float16, torch.float32, torch.float64):
            values = values.view({1: torch.int8, 2: torch.int16}[values.dtype.itemsize])  # NumPy lacks bf16 and float8
        total.update(values.numpy().reshape(-1).data)
    return total.hexdigest()


# Transports carry orders to sites and replies back.


@dataclass(frozen=True)
class Order:
    """An order of the server for a call, with its round and visit; the answer returns the ticket."""

    call: str
    round: int
    message: Message
    visit: int
    ticket: str = ""


@dataclass(frozen=True)
class Reply:
    """A site's answer, or the reason for its absence."""

    site: str
    message: Message | None
    failure: str = ""
    ticket: str = ""
    spent: bool = False
    """The failure is a spent budget for releases; the method decides about its consequences."""


class Transport(Protocol):
    """Carries orders to sites. Replies come one by one, in sorted order of sites; a lost site gives a failed reply."""

    names: tuple[str, ...]
    uncommitted: Mapping[str, str]
    """The sites that took part and failed in the last commit, and the reasons; they go back to their generations."""
    in_turn: bool
    """True if a call with releases sends each order only after the reply to the previous one: the caller can stop."""

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Let the sites execute their orders, and yield their replies."""

    def commit(self, generation: int) -> dict[str, int]:
        """Make the sites' private state durable, and return the current generation of each site."""

    def restore(self, generations: Mapping[str, int]) -> None:
        """Return the sites to the generations that a checkpoint names, one for each site."""
