"""The ledger lists every message between sites and server, also after several interruptions."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pytest
from tests.toy import Sets, deterministic_files, run_toy, tree

from fedvisage.base.errors import RunFailed
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Order, Reply

pytestmark = pytest.mark.long

Crossing = tuple[str, int, str, str]
"""Direction, round, call and site of a message."""


class Witness(LocalTransport):
    """A transport that notes each message, compares its notes with the ledger, and breaks after some messages."""

    def __init__(self, site_workers: Sequence[SiteWorker], ledger: Path, seen: list[Crossing], left: int) -> None:
        super().__init__(site_workers)
        self._ledger, self._seen, self._left = ledger, seen, left

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        self._note([("down", order.round, order.call, site) for site, order in orders.items()])
        for reply in super().call(orders):
            yield reply
            order = orders[reply.site]
            self._note([("up", order.round, order.call, reply.site)])

    def _note(self, messages: list[Crossing]) -> None:
        before, self._left = self._left, self._left - len(messages)
        self._seen += messages
        assert sorted(entries(self._ledger)) == sorted(self._seen), "a line is missing while its message crosses"
        if self._left <= 0 < before:
            raise RunFailed("the line went dead")


def entries(ledger: Path) -> list[Crossing]:
    """Read a ledger as a list of messages, each with all its fields."""
    rows = ((row["direction"], row["round"], row["call"], row["site"]) for row in read_lines(ledger))
    return [crossing for crossing, _ in groupby(rows)]


@pytest.mark.parametrize("checkpoint_every", [1, 2, 50])
def test_interruptions_lose_no_ledger_line(checkpoint_every: int, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, runtime__checkpoint_every=checkpoint_every, training__local={"batches": 1})
    out, seen = tmp_path / "run", list[Crossing]()
    run_toy(content, tmp_path / "whole")
    for left in (4, 8, 16, 9):  # after as many messages; a round has twelve
        with pytest.raises(RunFailed, match="dead"):
            run_toy(content, out, resume=True, wire=lambda workers: Witness(workers, out / "ledger.jsonl", seen, left))  # noqa: B023
    run_toy(content, out, resume=True, wire=lambda site_workers: Witness(site_workers, out / "ledger.jsonl", seen, 0))
    assert len(seen) > len(set(seen)), "something was sent again"
    assert sorted(entries(out / "ledger.jsonl")) == sorted(seen)
    assert deterministic_files(out) == deterministic_files(tmp_path / "whole")
