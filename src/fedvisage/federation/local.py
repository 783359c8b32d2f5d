"""All sites in this process: the transport of simulations, and the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fedvisage.errors import UserError
from fedvisage.federation.desk import SiteDesk
from fedvisage.federation.site import TrainingBroke
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import Refused
from fedvisage.federation.wire.transport import Order, Reply
from fedvisage.privacy.accountant import BudgetSpent


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
