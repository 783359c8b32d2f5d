"""Messages as bytes, and the digest that the ledger records of them."""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

Message = dict[str, Tensor]
"""Named tensors. A number is a tensor without dimensions, so that one set of checks covers all."""


class Malformed(Exception):
    """Bytes that are no message: truncated, oversized header, unknown type."""


def plain(tensor: Tensor) -> Tensor:
    """Return a detached, contiguous copy on the CPU: the only form in which a tensor enters a message."""
    return tensor.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)


def is_plain(value: object) -> bool:
    """Return whether a value has the form in which a tensor enters a message, or another that is read as easily."""
    if type(value) is not Tensor or value.layout != torch.strided or value.device.type != "cpu":
        return False
    lazy = value.is_neg() or value.is_conj()  # a sign that is not in the memory yet
    return not (lazy or value.is_nested or value.is_quantized or value.requires_grad)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Message:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def state_of(net: nn.ModuleDict, *parts: str) -> Message:
    """Return copies of all weights and buffers of some parts, named ``part.tensor``."""
    return {f"{part}.{name}": plain(value) for part in parts for name, value in net[part].state_dict().items()}


def load_parts(net: nn.ModuleDict, message: Mapping[str, Tensor]) -> None:
    """Put what a message holds of a network's parts into them; a part must come whole."""
    for name, part in net.items():
        state = under(f"{name}.", message)
        if state:
            part.load_state_dict(state)


def encode(message: Message) -> bytes:
    """Write a message in the safetensors format."""
    return write_tensors({name: tensor.contiguous() for name, tensor in message.items()})


def decode(data: bytes) -> Message:
    """Read a message back; anything that is not whole and well formed raises :class:`Malformed`."""
    try:
        return read_tensors(data)
    except (SafetensorError, KeyError, ValueError, OverflowError, RuntimeError) as error:
        raise Malformed(str(error)) from error


def size_of(tensors: Iterable[Tensor]) -> int:
    """Count the bytes of the values."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Digests:
    """Remembers the digest of the last message that it was asked about: many sites are asked about the same model.

    A message is the same if it has the same tensors, which nothing has changed in their place since.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._digest, self._seen = "", dict[str, tuple[Tensor, int]]()

    def of(self, message: Message) -> str:
        """Return a message's digest, worked out unless it is known."""
        if not self._knows(message):
            self._digest = digest_of(message)
            self._seen = {name: (value, _changes(value)) for name, value in message.items()}
        return self._digest

    def _knows(self, message: Message) -> bool:
        if not message or message.keys() != self._seen.keys():
            return False
        return all(self._seen[name][0] is value and self._seen[name][1] == _changes(value)
                   for name, value in message.items())  # fmt: skip


def _changes(value: Tensor) -> int:
    """Count how often a tensor was changed in its place; torch does not count for those made to infer with."""
    return 0 if value.is_inference() else value._version


def digest_of(message: Message) -> str:
    """Return SHA-256 over names, types, shapes and values in the order of names."""
    total = hashlib.sha256()
    for name in sorted(message):
        tensor = message[name].detach().cpu().contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.reshape(-1)
        if flat.stride() != (1,):  # a tensor of one element counts as contiguous whatever its stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        total.update(flat.view(torch.uint8).numpy().data)
    return total.hexdigest()
