"""The interface of transports, which carry orders to sites and replies back, and messages in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file

from fedvisage.federation.wire.message import Message, encode, plain


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

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Let the sites execute their orders, and yield their replies."""
        ...

    def commit(self, generation: int) -> dict[str, int]:
        """Make the sites' private state durable, and return the current generation of each site."""
        ...

    def restore(self, generations: Mapping[str, int]) -> None:
        """Return the sites to the generations that a checkpoint names."""
        ...


# Messages between processes of one machine, as files of tensors that both map.


@dataclass(frozen=True)
class TensorFiles:
    """The tensors of a message: their names in order, and the files that contain them.

    A file outlives its reader, so a request can be repeated; it need not outlive the machine.
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]

    def opened(self) -> Message:
        """Return the message by mapping its files; all readers share the same memory."""
        tensors: Message = {}
        for path in self.paths:
            tensors |= load_file(path)
        return {name: tensors[name] for name in self.names}


def pack(message: Message, path: Path) -> TensorFiles:
    """Write a message's tensors to a file."""
    path.write_bytes(encode({name: plain(value) for name, value in message.items()}))
    return TensorFiles(tuple(message), (path,))


def pack_all(orders: Mapping[str, Order], folder: Path, number: int) -> dict[str, TensorFiles]:
    """Write the messages of simultaneous orders; tensors that all of them contain are written once."""
    messages = [order.message for order in orders.values()]
    first = messages[0] if messages else {}
    common = {key: value for key, value in first.items() if all(message.get(key) is value for message in messages)}
    shared = pack(common, folder / f"{number}.safetensors").paths if common else ()
    parcels = {}
    for index, (name, order) in enumerate(orders.items()):
        separate = {key: value for key, value in order.message.items() if key not in common}
        paths = pack(separate, folder / f"{number}-{index}.safetensors").paths if separate else ()
        parcels[name] = TensorFiles(tuple(order.message), (*shared, *paths))
    return parcels
