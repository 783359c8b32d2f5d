"""One exchange: send orders, check the replies against the schema, and enter both in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedvisage.base.errors import UserError, choice_hint, plain_line
from fedvisage.base.streams import torch_rng
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.protections.compatible import check_request
from fedvisage.federation.protections.steps import admit
from fedvisage.federation.record.attendance import counted_sites, draw_offline, select_sites
from fedvisage.federation.record.ledger import JsonLines, LedgerEntry
from fedvisage.federation.record.releases import StatedCost
from fedvisage.federation.wire.message import Message, Order, Reply, Transport, digest_of, size_of
from fedvisage.federation.wire.precision import narrow_message, weights_in, widen_message
from fedvisage.federation.wire.schema import RefusedMessage, Schema
from fedvisage.recipe import Recipe

LONGEST_REASON = 300
"""Number of characters of a site's failure in the round's record."""


@dataclass
class RoundRecord:
    """The record of one round."""

    round: int
    asked: tuple[str, ...] = ()
    replied: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    """The sites that reported a spent budget."""
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def counted(self) -> list[str] | None:
        """Return the sites whose replies count so far; None if the round has nothing to combine."""
        return counted_sites(self.replied, self.failed)

    def reasons(self) -> str:
        """Return the failures of the first three sites, for a message that ends the run."""
        failures = [f"{name}: {reason}" for name, reason in sorted(self.failed.items())]
        return f" ({'; '.join(failures[:3])}{'; …' if len(failures) > 3 else ''})" if failures else ""


class Exchange:
    """Runs exchanges with the sites of a round, and keeps the round's record."""

    def __init__(
        self,
        recipe: Recipe,
        transport: Transport,
        schemas: Mapping[str, Schema],
        ledger: JsonLines,
        promise: Callable[[int], str] = lambda _: "",
    ) -> None:
        """Connect a transport with the declared schemas and the ledger.

        ``promise`` returns the guarantee of noise for weights to which a number of rounds contributed.
        """
        self.promise = promise
        self.recipe, self.transport, self.schemas, self.ledger = recipe, transport, schemas, ledger
        self.record = RoundRecord(0)
        self.present: tuple[str, ...] = transport.names
        self._offline: frozenset[str] = frozenset()
        self._visits = 0
        self._tickets = 0

    def open_round(self, number: int) -> None:
        """Draw the sites of a round and begin its record."""
        names, settings, seed = self.transport.names, self.recipe.federation, self.recipe.runtime.seed
        self.present = select_sites(names, settings, seed, number)
        self._offline = draw_offline(names, settings, seed, number)
        self.record = RoundRecord(number, asked=self.present)
        self._visits = self._tickets = 0

    def address_all_sites(self, number: int) -> None:
        """Address every site, before training or for thresholds after it; the ledger files this under a round."""
        self.present, self._offline = self.transport.names, frozenset()
        self.record = RoundRecord(number, asked=self.present)

    def new_visit(self) -> int:
        """Return a number for exchanges that belong together; numbers restart in each round."""
        self._visits += 1
        return self._visits

    def run(
        self,
        call: str,
        message: Message,
        *,
        each: Mapping[str, Message] | None = None,
        to: Sequence[str] | None = None,
        visit: int | None = None,
        combined: bool = False,
    ) -> Iterator[Reply]:
        """Send orders, and yield admitted or failed replies in sorted order of sites; ``combined`` if for a mean."""
        sites = [(name, self.transport.names) for name in (*(to or ()), *(each or ()))]
        for name, known in ((call, self.schemas), *sites):
            if name not in known:
                fault = f"server names {name!r}, an unknown call or site{choice_hint(name, known)}"
                raise UserError(f"method {self.recipe.method.name!r}", fault)
        if not combined:
            check_request(self.recipe, call, "single ones")
        number = self.new_visit() if visit is None else visit
        message = self._travelling(call, message)
        names = self.present if to is None else [name for name in to if name in self.present]
        # The guarantee of the weights covers the previous rounds; that of a finished model covers this one, too.
        promise = self.promise(max(0, self.record.round - (not self.schemas[call].exact)))
        orders, common = {}, self._lines(message, promise)
        for name in names:
            if name in self._offline:
                yield self._report_failure(name, "offline")
                continue
            extra = self._travelling(call, each.get(name, {})) if each else {}
            self._enter(name, "down", call, [*common, *self._lines(extra, "")])
            self._tickets += 1
            ticket = f"round {self.record.round}, {call} {self._tickets}"
            orders[name] = Order(call, self.record.round, {**message, **extra}, number, ticket)
        waiting, spent = dict(orders), list[BudgetSpent]()
        for reply in self.transport.call(orders):
            order = waiting.get(reply.site)
            if order is not None and reply.ticket == order.ticket:
                del waiting[reply.site]
                try:
                    admitted = self._admit(call, reply)
                except BudgetSpent as error:
                    if self.transport.in_turn:
                        raise
                    spent.append(error)  # raised when the ledger has what the other sites have released already
                else:
                    yield admitted
            else:
                # A second reply of a site, a reply without an order, or one to another order counts as a failure.
                kind = "stale" if order is not None else "again" if reply.site in orders else "unasked"
                fault = f"answered {kind}" if order is None else f"answers {reply.ticket!r}, expected {order.ticket!r}"
                self.note_failure(f"{reply.site} ({kind})", f"refused: {fault}")
        if spent:
            raise spent[0]
        for name in waiting:
            yield self._report_failure(name, "did not answer")

    def as_lent(self, weights: Message) -> Message:
        """Return weights in the precision in which this round's sites receive them."""
        if self.recipe.federation.wire == "fp32":
            return weights
        return widen_message(self._narrow(weights))

    def _travelling(self, call: str, message: Message) -> Message:
        """Return an order's tensors on the CPU, in the precision of the call; methods compute some of them on a GPU."""
        message = {name: value.cpu() for name, value in message.items()}
        return self._narrow(message) if self.schemas[call].narrow else message

    def _narrow(self, message: Message) -> Message:
        """Round weights; within a round, equal weights are rounded alike for all sites."""
        seed, number = self.recipe.runtime.seed, self.record.round
        return narrow_message(message, lambda name: torch_rng(seed, "server", number, "wire", name))

    def note_failure(self, name: str, reason: str) -> None:
        """Add a failure to the round's record, as plain text: a site's own message may be hostile."""
        self.record.failed[plain_line(name, LONGEST_REASON)] = plain_line(reason, LONGEST_REASON)

    def _admit(self, call: str, reply: Reply) -> Reply:
        """Check a reply and enter it in the ledger; a reply that is refused becomes a failure."""
        schema = self.schemas[call]
        if reply.spent and schema.releases:  # other calls cannot spend a budget, whatever the reply claims
            self.record.spent.add(reply.site)
            if len(self.present) - len(self.record.spent) < max(1, self.recipe.federation.quorum):
                raise BudgetSpent(plain_line(reply.failure, LONGEST_REASON))
        if reply.message is None:
            return self._report_failure(reply.site, reply.failure)
        try:
            cost = admit(reply.message, schema, self.recipe)
        except RefusedMessage as error:
            return self._report_failure(reply.site, f"refused: {error}")
        lines = []
        for upload, group in zip(schema.uploads, schema.group(reply.message).values(), strict=True):
            lines.append((upload.name, upload.kind, size_of(group.values()), digest_of(group), upload.guarantee))
        self._enter(reply.site, "up", call, lines, cost)
        self.record.replied.add(reply.site)
        if "loss" in reply.message:
            self.record.loss[reply.site] = float(reply.message["loss"])
        if "steps" in reply.message:
            self.record.steps[reply.site] = int(reply.message["steps"])
        if schema.narrow:
            return replace(reply, message=widen_message(reply.message))
        return reply

    def _report_failure(self, name: str, reason: str) -> Reply:
        self.note_failure(name, reason)
        return Reply(name, None, plain_line(reason, LONGEST_REASON))

    def _lines(self, message: Message, promise: str) -> list[tuple[str, str, int, str, str]]:
        """Return ledger lines for an order, grouped by part (text before the first dot) or by name."""
        groups: dict[str, Message] = {}
        for name, tensor in message.items():
            groups.setdefault(name.split(".")[0], {})[name] = tensor
        weights = {name.split(".")[0] for name in weights_in(message)}
        kinds = {name: "weights" if name in weights else "message" for name in groups}
        return [
            (name, kinds[name], size_of(g.values()), digest_of(g), promise if kinds[name] == "weights" else "")
            for name, g in groups.items()
        ]

    def _enter(
        self,
        site: str,
        direction: str,
        call: str,
        lines: Sequence[tuple[str, str, int, str, str]],
        cost: StatedCost | None = None,
    ) -> None:
        for name, kind, size, digest, guarantee in lines:
            entry = LedgerEntry(self.record.round, site, direction, call, name, kind, size, digest, guarantee)
            if cost is not None and kind == "dp":
                entry = replace(entry, guarantee=cost.guarantee, cost=cost.figures)
            self.ledger.append(entry.row())
            if direction == "up":
                self.record.bytes_up += size
            else:
                self.record.bytes_down += size
