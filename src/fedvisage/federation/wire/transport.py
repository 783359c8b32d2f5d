"""What a transport is: it brings orders to sites and their replies back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedvisage.federation.wire.message import Message


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
