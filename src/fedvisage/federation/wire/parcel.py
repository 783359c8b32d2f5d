"""Messages that go from process to process of one machine: tensors in a file that both map, names beside it.

A file outlives whoever was to read it, so what was asked can be asked again. It need not outlive the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from fedvisage.federation.wire.message import Message, encode, plain
from fedvisage.federation.wire.transport import Order


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
