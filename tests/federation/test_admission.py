"""Ten thousand hostile answers, none of which is admitted: each is put down by site, field and reason."""

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from tests.federation.damaged_uploads import NET, UPLOADS, honest, spoil
from tests.toy import recipe_of, tree

from fedvisage.federation.exchange import Exchange
from fedvisage.federation.protections.combine import Mean
from fedvisage.federation.record.ledger import JsonLines, read_lines
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.federation.wire.schema import schema_of

TRIALS = 10_000
WAYS = ("spoilt", "spoilt", "spoilt", "spoilt", "spoilt", "spoilt", "stale", "again", "unasked")


class HostileWire:
    """A transport with honest answers of A and C and a hostile answer of B."""

    names: tuple[str, ...] = ("A", "B", "C")
    uncommitted: Mapping[str, str] = MappingProxyType({})
    in_turn = True

    def __init__(self, draws: np.random.Generator) -> None:
        self.draws = draws
        self.honest = {name: honest(draws) for name in self.names}
        self.way, self.name, self.reason = "", "", ""
        self.refused: weakref.ref[torch.Tensor] | None = None

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        tickets = {name: order.ticket for name, order in orders.items()}
        yield Reply("A", self.honest["A"], ticket=tickets["A"])
        yield from self.hostile(Reply("B", honest(self.draws), ticket=tickets["B"]))
        yield Reply("C", self.honest["C"], ticket=tickets["C"])

    def hostile(self, reply: Reply) -> Iterator[Reply]:
        self.way = str(self.draws.choice(WAYS))
        other = self.hostile_reply(reply)
        if self.way == "again":
            yield reply
        yield other

    def hostile_reply(self, reply: Reply) -> Reply:
        """Return the answer that must not be admitted."""
        message: Message = dict(reply.message or {})
        if self.way == "stale":
            return replace(reply, ticket=reply.ticket.replace("round ", "round 1"))
        if self.way == "again":
            return replace(reply, message={name: value * 3 for name, value in message.items()})
        if self.way == "unasked":
            return replace(reply, site="D")
        self.name, self.reason = spoil(message, self.draws)
        self.refused = weakref.ref(next(iter(message.values())))
        return replace(reply, message=message)

    def commit(self, generation: int) -> dict[str, int]:
        return dict.fromkeys(self.names, generation)

    def restore(self, generations: Mapping[str, int]) -> None:
        return None


def mean_of(messages: Mapping[str, Message]) -> Message:
    mean = Mean()
    for _, message in sorted(messages.items()):
        mean.add({name: value for name, value in message.items() if name.startswith("model.")}, 1.0)
    return mean.result()


@pytest.mark.long
def test_ten_thousand_hostile_answers_are_all_refused(tmp_path: Path) -> None:
    recipe = recipe_of(tree({name: Path(f"nowhere/{name}") for name in "ABCU"}))
    wire, ways = HostileWire(np.random.default_rng(0)), Counter[str]()
    schema = schema_of(UPLOADS, recipe, NET)
    admitted = 0
    with closing(JsonLines(tmp_path / "ledger.jsonl")) as ledger:
        exchange = Exchange(recipe, wire, {"train": schema}, ledger)
        for trial in range(1, TRIALS + 1):
            exchange.open_round(trial)
            replies = {reply.site: reply.message for reply in exchange.run("train", {}) if reply.message is not None}
            failed = exchange.record.failed
            ways[wire.way] += 1
            assert replies.keys() == ({"A", "B", "C"} if wire.way == "again" else {"A", "C"})
            assert exchange.record.replied == replies.keys()
            admitted += len(replies)
            if wire.way == "spoilt":
                assert failed.keys() == {"B"}
                assert failed["B"].startswith(f"refused: {wire.name}")
                assert wire.reason in failed["B"]
            elif wire.way == "again":
                assert failed == {"B (again)": "refused: answered again"}
            elif wire.way == "stale":
                assert failed.keys() == {"B", "B (stale)"}
                assert failed["B (stale)"].startswith("refused: answers 'round 1")
            else:
                assert failed == {"D (unasked)": "refused: answered unasked", "B": "did not answer"}
            assert all(torch.isfinite(value).all() for value in mean_of(replies).values())
            assert wire.refused is None or wire.refused() is None, "a refused upload is still in memory"
    assert min(ways.values()) > TRIALS / 20
    assert len(read_lines(tmp_path / "ledger.jsonl")) == admitted * len(UPLOADS)


class FailingWire(HostileWire):
    """A site that fails with a reason of its own choice."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(np.random.default_rng(0))
        self.failure = Reply(name, None, reason)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        yield replace(self.failure, ticket=orders["B"].ticket)


def test_failure_reason_of_a_site_is_one_harmless_line(tmp_path: Path) -> None:
    recipe = recipe_of(tree({name: Path(f"nowhere/{name}") for name in "ABCU"}))
    for name in ("B", "\x1b[2J" + "B" * 5000):
        with closing(JsonLines(tmp_path / "ledger.jsonl")) as ledger:
            wire = FailingWire(name, "\x1b]0;owned\x07 half \ud800\nround 9: done" + "!" * 100_000)
            exchange = Exchange(recipe, wire, {"train": schema_of(UPLOADS, recipe, NET)}, ledger)
            exchange.open_round(1)
            reasons = [reply.failure for reply in exchange.run("train", {})]
        for text in (*reasons, *exchange.record.failed, *exchange.record.failed.values()):
            assert text.isprintable()
            assert len(text) <= 300
