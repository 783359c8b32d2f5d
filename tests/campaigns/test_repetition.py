"""A run in which sites were silent can be repeated from what it left behind, and ends in the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from campaigns.soak.replay import Asked, Record, Replayed, exchanges, uncommitted
from tests.toy import deterministic_files, run_toy, tree

from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.transport import Order, Reply

SILENT = {("A", 2, "train"), ("C", 2, "train"), ("B", 3, "heldout")}
UNCOMMITTED = {("A", 1), ("A", 2), ("C", 2), ("B", 3)}
"""Sites that were silent go back to what they had committed, and so does one that answered and did not commit."""


class Unsteady(LocalTransport):
    """Sites that answer some orders with silence, and forget some rounds."""

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
def unsteady(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unsteady") / "run"
    run_toy(content(sets), out, wire=Unsteady)
    return out


def content(sets: Mapping[str, Path]) -> dict[str, object]:
    return tree(sets, "fedgpad", training__rounds=4, training__optimizer__state="kept")


def server_log(path: Path) -> Path:
    said = [f"{site} did not commit round {number}: fell asleep" for site, number in sorted(UNCOMMITTED)]
    path.write_text("".join(json.dumps({"event": "said", "message": text}) + "\n" for text in said))
    return path


def test_a_repetition_has_the_same_bytes(unsteady: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    record = Record.of(unsteady, server_log(tmp_path / "log.jsonl"))
    run_toy(content(sets), tmp_path / "again", wire=lambda site_workers: Replayed(site_workers, record))
    assert deterministic_files(tmp_path / "again") == deterministic_files(unsteady)


def test_who_did_not_commit_matters(unsteady: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    """Otherwise the soak would be blind to sites that go on from the wrong state."""
    record = Record.of(unsteady)
    run_toy(content(sets), tmp_path / "again", wire=lambda site_workers: Replayed(site_workers, record))
    assert (
        deterministic_files(tmp_path / "again")["model.safetensors"]
        != deterministic_files(unsteady)["model.safetensors"]
    )


def line(number: int, site: str, direction: str, field: str, call: str = "train") -> dict[str, object]:
    return {"round": number, "site": site, "direction": direction, "call": call, "field": field}


def test_a_ledger_is_read_as_exchanges() -> None:
    down = [line(1, site, "down", part) for site in "AB" for part in ("encoder", "classifier")]
    up = [line(1, site, "up", part) for site in "B" for part in ("encoder", "classifier")]
    both, only = frozenset("AB"), frozenset("B")
    asked = Asked(1, "train", both, only)
    assert exchanges([*down, *up]) == [asked]
    assert exchanges([*down, *up, *down, *up]) == [asked, asked], "a call can be made twice in a round"
    assert exchanges([*down, *down, *up]) == [Asked(1, "train", both, frozenset()), asked], "nobody answered at first"


def test_what_a_resumed_run_does_again_is_void() -> None:
    said = ["continuing after round 1", "B did not commit round 2: cut off", "A did not commit round 3: cut off"]
    assert uncommitted(said) == {(2, "B"), (3, "A")}
    assert uncommitted([*said, "continuing after round 2"]) == {(2, "B")}
