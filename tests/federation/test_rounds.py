"""Absent, failing and malicious sites do not change the round of the others."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.examples import split, two_exchanges
from tests.federation.wires import Wire
from tests.methods.interrupting import Interrupted, stop_after
from tests.refusals import failed
from tests.toy import ROUNDS, NewRun, Sets, run_toy, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.federation.method import Method
from fedvisage.federation.record.attendance import draw_offline
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.server import Server
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Message, Order
from fedvisage.methods.pad import fedpad
from fedvisage.recipe import Federation
from fedvisage.tasks.pad.heldout import SCORES


@pytest.fixture(scope="module")
def without_b(sets: Sets, new_run: NewRun) -> Path:
    """A run without site B."""
    return new_run(recipe_without(sets, "B"))


def recipe_without(sets: Sets, *names: str, **changes: Any) -> dict[str, Any]:
    return tree(sets, data__sites={name: str(sets[name]) for name in "ABC" if name not in names}, **changes)


def spoil(order: Order, message: Message) -> Message:
    return {name: value.double() if name == "loss" else value * math.nan for name, value in message.items()}


def drop_a_field(order: Order, message: Message) -> Message:
    return dict(list(message.items())[1:])


def keep_one_row(order: Order, message: Message) -> Message:
    return {name: value[:1] if value.dim() else value for name, value in message.items()}


def claim_examples(order: Order, message: Message) -> Message:
    return message | {"examples": torch.tensor(10**12)} if "examples" in message else {}


@pytest.mark.long
@pytest.mark.parametrize("up", [spoil, drop_a_field, keep_one_row, claim_examples])
def test_malformed_upload_is_refused_by_site_name_and_left_out(
    up: Any, sets: Sets, without_b: Path, tmp_path: Path
) -> None:
    run_toy(tree(sets), tmp_path / "run", wire=partial(Wire, up=up))
    assert weights(tmp_path / "run") == weights(without_b)
    for row in read_lines(tmp_path / "run" / "rounds.jsonl"):
        assert row["replied"] == ["A", "C"]
        assert row["failed"]["B"].startswith("refused: ")


@pytest.mark.long
def test_failing_disk_of_a_site_does_not_stop_the_others(sets: Sets, without_b: Path, tmp_path: Path) -> None:
    class Broken(LocalTransport):
        def __init__(self, site_workers: Any, **others: Any) -> None:
            super().__init__(site_workers, **others)
            self.site_workers["B"].execute = unreadable  # type: ignore[method-assign]

    def unreadable(order: Order) -> Message:
        raise OSError(5, "Input/output error", "images.npy")

    run_toy(tree(sets), tmp_path / "run", wire=Broken)
    assert weights(tmp_path / "run") == weights(without_b)
    assert "Input/output error" in read_lines(tmp_path / "run" / "rounds.jsonl")[0]["failed"]["B"]


@pytest.mark.long
def test_a_site_whose_loss_is_not_finite_fails_alone(sets: Sets, without_b: Path, tmp_path: Path) -> None:
    def down(order: Order) -> Order:
        broken = {
            name: torch.full_like(value, math.nan) for name, value in order.message.items() if value.is_floating_point()
        }
        return replace(order, message={**order.message, **broken})

    run_toy(tree(sets), tmp_path / "run", wire=partial(Wire, down=down))
    assert weights(tmp_path / "run") == weights(without_b)
    first = read_lines(tmp_path / "run" / "rounds.jsonl")[0]
    assert first["replied"] == ["A", "C"]
    assert "not finite" in first["failed"]["B"]


@pytest.mark.long
def test_a_round_without_a_site_equals_the_round_of_the_survivors(sets: Sets, tmp_path: Path) -> None:
    settings = {"offline": 0.4}
    seed = next(s for s in range(100) if draw_offline("ABC", Federation(**settings), s, 1) == {"B"})
    common: dict[str, Any] = {"runtime__seed": seed, "training__rounds": 1}
    run_toy(tree(sets, federation=settings, **common), tmp_path / "away")
    run_toy(recipe_without(sets, "B", **common), tmp_path / "without")
    assert weights(tmp_path / "away") == weights(tmp_path / "without")
    assert read_lines(tmp_path / "away" / "rounds.jsonl")[0]["failed"] == {"B": "offline"}


def test_unsampled_sites_get_no_message(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, federation={"participation": 0.34}, evaluation__every=0), tmp_path / "run")
    ledger = read_lines(tmp_path / "run" / "ledger.jsonl")
    for row in read_lines(tmp_path / "run" / "rounds.jsonl"):
        receivers = {line["site"] for line in ledger if line["round"] == row["round"] and line["call"] == "train"}
        assert receivers == set(row["asked"])
        assert len(receivers) == 1


@pytest.mark.long
def test_without_a_quorum_the_model_stays_as_it_was(sets: Sets, tmp_path: Path) -> None:
    settings = {"offline": 0.4, "quorum": 3}
    drawn = Federation(**settings)
    seed = next(s for s in range(100) if [bool(draw_offline("ABC", drawn, s, r)) for r in (1, 2)] == [False, True])
    common: dict[str, Any] = {"runtime__seed": seed, "evaluation__every": 0}
    run_toy(tree(sets, federation=settings, training__rounds=1, **common), tmp_path / "one")
    run_toy(tree(sets, federation=settings, training__rounds=2, **common), tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert "3 needed" in read_lines(tmp_path / "two" / "rounds.jsonl")[1]["failed"]["no quorum"]


@pytest.mark.parametrize("method", [fedpad.METHOD, fedpad.SINGLE, two_exchanges.METHOD, split.METHOD])
def test_too_many_rounds_without_a_quorum_end_the_run(method: Method, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, method, federation={"offline": 1.0, "give_up_after": 2}, training__rounds=9)
    with failed(RunFailed, "2 rounds", "quorum"):
        run_toy(content, tmp_path / "run", method=method)
    assert len(read_lines(tmp_path / "run" / "rounds.jsonl")) == 1, "the second of the rounds was the last straw"


@pytest.mark.long
def test_resume_collects_thresholds_that_lacked_a_quorum(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, federation={"quorum": 3}, evaluation__every=0)
    lossy = partial(Wire, up=lambda order, message: None if order.call == SCORES else message)
    with failed(RunFailed, "rounds are over", "2 of 3", "B", "--resume"):
        run_toy(content, tmp_path / "run", wire=lossy)
    run_toy(content, tmp_path / "run", resume=True)
    run_toy(content, tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.long
def test_run_without_any_quorum_trains_from_its_start_when_it_is_resumed(sets: Sets, tmp_path: Path) -> None:
    """Sites may refuse all rounds until their administrators have approved the run; A and C have trained by then."""
    content = tree(sets, federation={"quorum": 3}, training__optimizer__state="kept")
    run_toy(content, tmp_path / "whole")
    with failed(RunFailed, "quorum", "--resume"):
        run_toy(content, tmp_path / "run", wire=partial(Wire, up=lambda order, message: None))
    run_toy(content, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    rows = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [(row["round"], row["replied"]) for row in rows] == [(number + 1, [*"ABC"]) for number in range(ROUNDS)]


def test_failure_at_all_sites_ends_the_run_with_the_reason(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__optimizer={"lr": 1e30}, federation={"give_up_after": 2})
    with pytest.raises(RunFailed, match=r"quorum.* 0 of 3 .*\(A: .*(finite|reaches).*; B: .*; C: .*\)"):
        run_toy(content, tmp_path / "run")


def lost_at(call: str, number: int) -> Callable[[Order, Message], Message | None]:
    """Lose B's reply to one of the orders of round 2."""
    count = 0

    def up(order: Order, message: Message) -> Message | None:
        nonlocal count
        count += order.call == call and order.round == 2
        return None if order.call == call and order.round == 2 and count == number else message

    return up


@pytest.mark.long
@pytest.mark.parametrize(("call", "number"), [("tokens", 1), ("tokens", 2), ("head", 1), ("finish", 1)])
def test_site_lost_during_an_exchange_does_not_stop_the_round(
    call: str, number: int, sets: Sets, tmp_path: Path
) -> None:
    content, wire = tree(sets, split.METHOD, training__optimizer__state="kept"), partial(Wire, up=lost_at(call, number))
    metrics = run_toy(content, tmp_path / "run", method=split.METHOD, wire=wire)
    rows = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert len(rows) == ROUNDS
    assert [row["failed"] for row in rows] == [{}, {"B": "lost"}, {}]
    assert math.isfinite(metrics["eer"])


@pytest.mark.long
def test_gradient_of_another_shape_is_refused_and_the_server_continues(sets: Sets, tmp_path: Path) -> None:
    def up(order: Order, message: Message) -> Message:
        return {"gradient": message["gradient"][:3]} if order.call == "head" else message

    run_toy(tree(sets, split.METHOD), tmp_path / "run", method=split.METHOD, wire=partial(Wire, up=up))
    assert all(
        "gradient: has shape (3, 16)" in row["failed"]["B"] for row in read_lines(tmp_path / "run" / "rounds.jsonl")
    )


def test_a_view_of_the_network_that_the_server_keeps_is_kept_as_it_was(sets: Sets, tmp_path: Path) -> None:
    def server(s: Server) -> Iterator[None]:
        weight = next(s.net.parameters()).detach()
        for _ in s.rounds():
            with s.quorum():
                s.load(s.reduce("train", s.lent()).value)
                weight += 0.1 * s.kept.get("previous", weight).clone()
                s.kept["previous"] = weight
            yield

    method, content = replace(fedpad.METHOD, name="mine", server=server), tree(sets, evaluation__every=0)
    run_toy(content, tmp_path / "whole", method=method)
    with pytest.raises(Interrupted):
        run_toy(content, tmp_path / "parts", method=stop_after(method, 2))
    run_toy(content, tmp_path / "parts", method=method, resume=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
