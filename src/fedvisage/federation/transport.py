"""What a transport is: it brings orders to sites and their replies back. ``local`` runs all sites in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedvisage.errors import UserError
from fedvisage.federation.message import Message
from fedvisage.federation.schema import Refused
from fedvisage.federation.site import TrainingBroke
from fedvisage.federation.turn import Order, SiteDesk
from fedvisage.privacy.accountant import BudgetSpent


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


class LocalTransport:
    """All sites in this process, one after another."""

    def __init__(self, desks: Sequence[SiteDesk], tap: Callable[[str, Message], None] | None = None) -> None:
        """Take the sites; ``tap`` sees every message that leaves one, as a recorder on the wire would."""
        self.desks = {desk.name: desk for desk in sorted(desks, key=lambda desk: desk.name)}
        self.names = tuple(self.desks)
        self.tap = tap

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Carry the orders out, in sorted order of sites."""
        for name in sorted(orders):
            try:
                message = self.desks[name].carry_out(orders[name])
            except BudgetSpent as error:
                yield Reply(name, None, str(error), orders[name].ticket, spent=True)
                continue
            except (TrainingBroke, Refused, OSError) as error:
                yield Reply(name, None, str(error), orders[name].ticket)
                continue
            if self.tap is not None:
                self.tap(name, message)
            yield Reply(name, message, ticket=orders[name].ticket)

    def commit(self, generation: int) -> dict[str, int]:
        """Commit every site."""
        return {name: desk.commit(generation) for name, desk in self.desks.items()}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Restore every site."""
        for name, desk in self.desks.items():
            if name not in generations:
                raise UserError("checkpoint", f"knows nothing of site {name}")
            desk.restore(generations[name])
