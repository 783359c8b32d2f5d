"""The repetition of a run with silent sites ends in the same bytes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from campaigns.soak.replay import RecordedExchange, ReplayTransport, RunRecord, read_exchanges, read_uncommitted
from tests.toy import Sets, deterministic_files, run_toy, tree, weights

from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Order, Reply

SILENT = {("A", 2, "train"), ("C", 2, "train"), ("B", 3, "heldout")}
UNCOMMITTED = {("A", 1), ("A", 2), ("C", 2), ("B", 3)}
"""Silent sites return to their last commit, and so does A, which answers in round 1 and does not commit."""


class UnsteadyTransport(LocalTransport):
    """Sites that are silent at some orders, and do not commit some rounds."""

    def __init__(self, site_workers: Sequence[SiteWorker]) -> None:
        super().__init__(site_workers)
        self._generations = dict.fromkeys(self.names, 0)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        for name, order in orders.items():
            if (name, order.round, order.call) in SILENT:
                yield Reply(name, None, "fell asleep", order.ticket)
            else:
                yield from super().call({name: order})

    def commit(self, generation: int) -> dict[str, int]:
        for name, worker in self.site_workers.items():
            if (name, generation) in UNCOMMITTED:
                worker.restore(self._generations[name])
            else:
                self._generations[name] = worker.commit(generation)
        return dict(self._generations)


@pytest.fixture(scope="module")
def content(sets: Sets) -> dict[str, Any]:
    return tree(sets, "fedgpad", training__rounds=4, training__optimizer__state="kept")


@pytest.fixture(scope="module")
def unsteady(content: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unsteady") / "run"
    run_toy(content, out, wire=UnsteadyTransport)
    return out


def repeat(content: Mapping[str, Any], out: Path, record: RunRecord) -> Path:
    run_toy(content, out, wire=lambda site_workers: ReplayTransport(site_workers, record))
    return out


@pytest.mark.long
def test_repetition_has_the_same_bytes(unsteady: Path, content: Mapping[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    messages = [f"{site} did not commit round {number}: fell asleep" for site, number in sorted(UNCOMMITTED)]
    log.write_text("".join(json.dumps({"event": "said", "message": text}) + "\n" for text in messages))
    again = repeat(content, tmp_path / "again", RunRecord.read(unsteady, log))
    assert deterministic_files(again) == deterministic_files(unsteady)


@pytest.mark.long
def test_repetition_without_the_uncommitted_rounds_differs(
    unsteady: Path, content: Mapping[str, Any], tmp_path: Path
) -> None:
    """Otherwise the soak would not notice sites that continue from the wrong state."""
    assert weights(repeat(content, tmp_path / "again", RunRecord.read(unsteady))) != weights(unsteady)


def row(site: str, direction: str, part: str) -> dict[str, object]:
    return {"round": 1, "site": site, "direction": direction, "call": "train", "field": part}


def test_ledger_is_split_into_exchanges() -> None:
    down = [row(site, "down", part) for site in "AB" for part in ("encoder", "classifier")]
    up = [row("B", "up", part) for part in ("encoder", "classifier")]
    exchange = RecordedExchange(1, "train", frozenset("AB"), frozenset("B"))
    silent = RecordedExchange(1, "train", frozenset("AB"), frozenset())
    assert read_exchanges([*down, *up]) == [exchange]
    assert read_exchanges([*down, *up, *down, *up]) == [exchange, exchange], "a call can be repeated in a round"
    assert read_exchanges([*down, *down, *up]) == [silent, exchange], "no site answered the first call"


def test_rounds_that_a_resumed_run_repeats_are_void() -> None:
    messages = ["continuing after round 1", "B did not commit round 2: cut off", "A did not commit round 3: cut off"]
    assert read_uncommitted(messages) == {(2, "B"), (3, "A")}
    assert read_uncommitted([*messages, "continuing after round 2"]) == {(2, "B")}
