"""What a transport is: it brings orders to sites and their replies back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file

from fedvisage.federation.wire.message import Message, encode, plain


@dataclass(frozen=True)
class Order:
    """What the server asks for, in which round, as part of which visit; the answer carries the ticket back."""

    call: str
    round: int
    message: Message
    visit: int
    ticket: str = ""


@dataclass(frozen=True)
class Reply:
    """A site's answer, or the reason why there is none."""

    site: str
    message: Message | None
    failure: str = ""
    ticket: str = ""
    spent: bool = False
    """It failed because the site's budget for releases does not allow another one: that is for the method to decide."""


class Transport(Protocol):
    """Brings orders to sites. Replies come one at a time, in sorted order of sites; a lost site is a failed reply."""

    names: tuple[str, ...]

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Have sites carry out their orders."""
        ...

    def commit(self, generation: int) -> dict[str, int]:
        """Make the sites' private state durable, and return the generation that each is at."""
        ...

    def restore(self, generations: Mapping[str, int]) -> None:
        """Send the sites back to the generations that a checkpoint names."""
        ...


# Messages that go from process to process of one machine: tensors in a file that both map, names beside it.
#
# A file outlives whoever was to read it, so what was asked can be asked again. It need not outlive the machine.


@dataclass(frozen=True)
class Parcel:
    """The tensors of a message: their names in order, and the files that hold them together."""

    names: tuple[str, ...]
    paths: tuple[Path, ...]

    def opened(self) -> Message:
        """Map the files; what is read of them is in memory once, whatever the number of readers."""
        held: Message = {}
        for path in self.paths:
            held |= load_file(path)
        return {name: held[name] for name in self.names}


def pack(message: Message, path: Path) -> Parcel:
    """Write a message's tensors to a file."""
    path.write_bytes(encode({name: plain(value) for name, value in message.items()}))
    return Parcel(tuple(message), (path,))


def pack_all(orders: Mapping[str, Order], folder: Path, number: int) -> dict[str, Parcel]:
    """Write the messages of orders that go out together; what all of them hold is written once."""
    messages = [order.message for order in orders.values()]
    first = messages[0] if messages else {}
    common = {key: value for key, value in first.items() if all(other.get(key) is value for other in messages)}
    shared = pack(common, folder / f"{number}.safetensors").paths if common else ()
    parcels = {}
    for place, (name, order) in enumerate(orders.items()):
        own = {key: value for key, value in order.message.items() if key not in common}
        paths = pack(own, folder / f"{number}-{place}.safetensors").paths if own else ()
        parcels[name] = Parcel(tuple(order.message), (*shared, *paths))
    return parcels
