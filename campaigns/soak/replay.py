"""A run again in one process, in which each site answers what it answered there: the bytes must be the same.

The ledger says which orders were answered, ``rounds.jsonl`` why the others were not, the server's ``log.jsonl`` which
sites did not commit a round. With that the result no longer depends on when anything happened.
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
from fedvisage.federation.wire.transport import Order, Reply

CONTINUED = re.compile(r"continuing after round (\d+)")
UNCOMMITTED = re.compile(r"(.+) did not commit round (\d+):")


@dataclass(frozen=True)
class Asked:
    """One exchange: the orders of a call that went out together, and who answered."""

    round: int
    call: str
    sites: frozenset[str]
    answered: frozenset[str]


def exchanges(rows: Iterable[Mapping[str, Any]]) -> list[Asked]:
    """Read a ledger as a row of exchanges: all orders go down before the first answer comes up."""
    found: list[Asked] = []
    place, down, up = None, set[tuple[str, str]](), set[str]()

    def close() -> None:
        if place is not None and down:
            found.append(Asked(*place, frozenset(site for site, _ in down), frozenset(up)))

    for row in rows:
        here, line = (int(row["round"]), str(row["call"])), (str(row["site"]), str(row["field"]))
        going_down = row["direction"] == "down"
        if here != place or (going_down and (up or line in down)):
            close()
            place, down, up = here, set(), set()
        if going_down:
            down.add(line)
        else:
            up.add(line[0])
    close()
    return found


def uncommitted(lines: Iterable[str]) -> set[tuple[int, str]]:
    """Read from what a server says of a run which sites did not commit which rounds; what was done again is void."""
    found: set[tuple[int, str]] = set()
    for text in lines:
        if match := CONTINUED.search(text):
            found = {(number, site) for number, site in found if number <= int(match[1])}
        elif match := UNCOMMITTED.search(text):
            found.add((int(match[2]), match[1]))
    return found


@dataclass(frozen=True)
class Record:
    """What a finished run says of who answered what."""

    asked: Sequence[Asked]
    reasons: Mapping[int, Mapping[str, str]]
    lost: frozenset[tuple[int, str]] = frozenset()
    uncommitted: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By round, the sites that took part and could not store their state, and the reasons."""

    @classmethod
    def of(cls, out: Path, log: Path | None = None) -> Record:
        """Read it from a run's directory, and from the server's log of the run."""
        said = [] if log is None else [json.loads(line)["message"] for line in log.read_text().splitlines()]
        rounds = list(read_lines(out / ROUNDS))
        reasons = {int(row["round"]): row["failed"] for row in rounds}
        unstored = {int(row["round"]): row["uncommitted"] for row in rounds if "uncommitted" in row}
        rows = [row for row in read_lines(out / LEDGER) if not row.get(REPEATED)]
        return cls(exchanges(rows), reasons, frozenset(uncommitted(said)), unstored)


class Replayed(LocalTransport):
    """All sites in this process, silent when they were silent."""

    def __init__(self, site_workers: Sequence[SiteWorker], record: Record) -> None:
        super().__init__(site_workers)
        self._record, self._next = record, iter(record.asked)
        self._generations = dict.fromkeys(self.names, 0)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Carry out the orders that were answered."""
        asked, one = next(self._next), next(iter(orders.values()))
        assert (asked.round, asked.call, asked.sites) == (one.round, one.call, orders.keys()), "another course"
        reasons = self._record.reasons.get(one.round, {})
        yield from super().call({name: orders[name] for name in orders if name in asked.answered})
        for name in sorted(orders.keys() - asked.answered):
            yield Reply(name, None, reasons.get(name, "did not answer"), orders[name].ticket)

    def commit(self, generation: int) -> dict[str, int]:
        """Commit the sites that did; the others go back to where they had committed."""
        self.uncommitted = self._record.uncommitted.get(generation, {})
        for name, worker in self.site_workers.items():
            if (generation, name) in self._record.lost:
                worker.restore(self._generations[name])
            else:
                self._generations[name] = worker.commit(generation)
        return dict(self._generations)
