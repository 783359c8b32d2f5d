"""Repetition of a run in one process: each site answers the orders that it answered before, and the bytes are equal.

The ledger records which orders were answered, ``rounds.jsonl`` why the others were not, and the server's ``log.jsonl``
which sites did not commit a round. The result then no longer depends on time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.federation.record.ledger import LEDGER, REPEATED, ROUNDS, read_lines
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Order, Reply

CONTINUED = re.compile(r"continuing after round (\d+)")
UNCOMMITTED = re.compile(r"(.+) did not commit round (\d+):")


@dataclass(frozen=True)
class RecordedExchange:
    """One exchange: the sites that got the orders of a call, and those that answered."""

    round: int
    call: str
    sites: frozenset[str]
    answered: frozenset[str]


def read_exchanges(rows: Iterable[Mapping[str, Any]]) -> list[RecordedExchange]:
    """Split a ledger into exchanges: all orders of an exchange are recorded before its first answer."""
    exchanges: list[RecordedExchange] = []
    current, down, up = None, set[tuple[str, str]](), set[str]()

    def close() -> None:
        if current is not None and down:
            exchanges.append(RecordedExchange(*current, frozenset(site for site, _ in down), frozenset(up)))

    for row in rows:
        call, line = (int(row["round"]), str(row["call"])), (str(row["site"]), str(row["field"]))
        is_order = row["direction"] == "down"
        if call != current or (is_order and (up or line in down)):
            close()
            current, down, up = call, set(), set()
        if is_order:
            down.add(line)
        else:
            up.add(line[0])
    close()
    return exchanges


def read_uncommitted(messages: Iterable[str]) -> set[tuple[int, str]]:
    """Return the rounds and sites without a commit by a server's messages, except of rounds that were repeated."""
    uncommitted: set[tuple[int, str]] = set()
    for text in messages:
        if match := CONTINUED.search(text):
            uncommitted = {(number, site) for number, site in uncommitted if number <= int(match[1])}
        elif match := UNCOMMITTED.search(text):
            uncommitted.add((int(match[2]), match[1]))
    return uncommitted


@dataclass(frozen=True)
class RunRecord:
    """The exchanges and commits of a finished run."""

    exchanges: Sequence[RecordedExchange]
    reasons: Mapping[int, Mapping[str, str]]
    """By round, the sites that did not answer, and why."""
    uncommitted: frozenset[tuple[int, str]] = frozenset()
    unstored: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By round, the sites that took part and could not store their state, and why."""

    @classmethod
    def read(cls, out: Path, log: Path | None = None) -> RunRecord:
        """Read the record from a run's directory and from the server's log of the run."""
        messages = [] if log is None else [json.loads(line)["message"] for line in log.read_text().splitlines()]
        rounds = list(read_lines(out / ROUNDS))
        reasons = {int(row["round"]): row["failed"] for row in rounds}
        unstored = {int(row["round"]): row["uncommitted"] for row in rounds if "uncommitted" in row}
        rows = [row for row in read_lines(out / LEDGER) if not row.get(REPEATED)]
        return cls(read_exchanges(rows), reasons, frozenset(read_uncommitted(messages)), unstored)


class ReplayTransport(LocalTransport):
    """All sites in this process, silent at the orders that they did not answer in a recorded run."""

    def __init__(self, site_workers: Sequence[SiteWorker], record: RunRecord) -> None:
        super().__init__(site_workers)
        self._record, self._exchanges = record, iter(record.exchanges)
        self._generations = dict.fromkeys(self.names, 0)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Execute the orders that were answered."""
        exchange, order = next(self._exchanges, None), next(iter(orders.values()))
        assert exchange is not None, "more exchanges than recorded"
        expected = (exchange.round, exchange.call, exchange.sites)
        assert expected == (order.round, order.call, frozenset(orders)), "the exchange is not the recorded one"
        reasons = self._record.reasons.get(order.round, {})
        yield from super().call({name: orders[name] for name in orders if name in exchange.answered})
        for name in sorted(orders.keys() - exchange.answered):
            yield Reply(name, None, reasons.get(name, "did not answer"), orders[name].ticket)

    def commit(self, generation: int) -> dict[str, int]:
        """Commit the sites that committed; restore the last commit of the others."""
        self.uncommitted = self._record.unstored.get(generation, {})
        for name, worker in self.site_workers.items():
            if (generation, name) in self._record.uncommitted:
                worker.restore(self._generations[name])
            else:
                self._generations[name] = worker.commit(generation)
        return dict(self._generations)
