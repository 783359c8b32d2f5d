"""The interface of transports, which carry orders to sites and replies back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedvisage.federation.wire.message import Message


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

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Let the sites execute their orders, and yield their replies."""
        ...

    def commit(self, generation: int) -> dict[str, int]:
        """Make the sites' private state durable, and return the current generation of each site."""
        ...

    def restore(self, generations: Mapping[str, int]) -> None:
        """Return the sites to the generations that a checkpoint names, one for each site."""
        ...
