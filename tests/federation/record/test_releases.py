"""Releases under differential privacy: charged before they are drawn, stored before they are sent, drawn once."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
from tests.faults.machine import kill_at_operation
from tests.federation.privacy.drawing import draws_of
from tests.refusals import failed, refused

from fedvisage.base.errors import RunFailed
from fedvisage.federation.privacy.accountant import BudgetSpent, Charge
from fedvisage.federation.privacy.mechanisms import Budget, Draws, SystemDraws, noise
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.releases import CHARGES, Allowance, Releases, stated_cost
from fedvisage.federation.record.store import Owner, SiteStore
from fedvisage.federation.wire.message import Message, digest_of
from fedvisage.federation.wire.schema import RefusedMessage

CHARGE = Charge("round 1, sums", "gaussian", 1.0, 1e-5, "add-remove", sensitivity=1.0, sigma=4.0)
SECOND = replace(CHARGE, release="round 1, selection", mechanism="selection", delta=0.0, sigma=0.0)
ALLOWANCE = Allowance(Budget(4.0, 1e-3), "sum")


def mechanism(draws: Draws) -> Message:
    return {"centres": noise((3, 4), 4.0, draws).float()}


def release(at: Path, name: str = "round 1", charges: tuple[Charge, ...] = (SECOND, CHARGE), **changes: Any) -> Message:
    return Releases(at).release(
        name,
        changes.get("mechanism", mechanism),
        charges,
        ALLOWANCE,
        changes.get("draws", SystemDraws()),
        changes.get("forget"),
    )


def charged_releases(at: Path) -> list[str]:
    return [row["release"] for row in read_lines(at / CHARGES)]


@dataclass(frozen=True)
class End:
    """Events of a child process before it ended: noise drawn, value sent."""

    drawn: bool
    sent: str
    killed: bool


def child(at: Path, before: Callable[[], None]) -> End:
    """Release in another process, which reports the draw and the sent value."""
    output, input_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        before()

        def report_draw(draws: Draws) -> Message:
            os.write(input_end, b"drawn\n")
            return mechanism(draws)

        os.write(input_end, digest_of(release(at, mechanism=report_draw)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(input_end)
    with os.fdopen(output) as file:
        drawn, _, sent = file.read().rpartition("\n")
    return End(drawn == "drawn", sent, os.WIFSIGNALED(os.waitpid(pid, 0)[1]))


@pytest.mark.long
def test_after_a_kill_a_sent_value_is_repeated_and_a_drawn_one_is_charged(tmp_path: Path) -> None:
    """With system entropy a second draw could not give the same bytes."""
    sent, number = "", 0
    while not sent:
        number += 1
        at = tmp_path / str(number) / "releases"
        end = child(at, partial(kill_at_operation, number, (str(at),)))
        assert end.killed
        if end.drawn:
            assert charged_releases(at) == [SECOND.release, CHARGE.release]
        stored = (at / "round 1.safetensors").exists()
        assert stored or not end.sent
        again = [digest_of(release(at)) for _ in range(2)]
        assert again[0] == again[1]
        assert not end.sent or again[0] == end.sent
        assert charged_releases(at) == [SECOND.release, CHARGE.release]
        sent = end.sent
    assert number > 5, "killed before the file is made, opened, written, renamed and made durable"


@pytest.mark.parametrize("length", [1, 40, 150, 290])
def test_incomplete_charge_is_dropped_and_written_again(length: int, tmp_path: Path) -> None:
    release(tmp_path / "whole")
    lines = (tmp_path / "whole" / CHARGES).read_bytes()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / CHARGES).write_bytes(lines[:length])
    release(tmp_path / "cut")
    assert (tmp_path / "cut" / CHARGES).read_bytes() == lines


def test_a_release_that_was_charged_but_not_drawn_is_charged_once(tmp_path: Path) -> None:
    def fail(draws: Draws) -> Message:
        raise OSError("the power went")

    for _ in range(3):
        with pytest.raises(OSError, match="power"):
            release(tmp_path, mechanism=fail)
    release(tmp_path)
    assert charged_releases(tmp_path) == [SECOND.release, CHARGE.release]


def test_restoring_a_generation_keeps_the_releases(tmp_path: Path) -> None:
    store = SiteStore(tmp_path)
    first = release(tmp_path / "releases")
    for generation in (1, 2):
        store.save({"private": torch.tensor(float(generation))})
        store.commit(generation)
    second = release(tmp_path / "releases", "round 2", (replace(CHARGE, release="round 2, sums"),))
    store.restore(1)
    assert digest_of(release(tmp_path / "releases")) == digest_of(first)
    assert digest_of(release(tmp_path / "releases", "round 2", ())) == digest_of(second)
    assert len(charged_releases(tmp_path / "releases")) == 3


def test_server_that_orders_rounds_in_another_order_gets_no_second_draw(tmp_path: Path) -> None:
    """Round 4 replaces the value of round 1 when it is drawn, but not when its own value is sent again."""

    def order(number: int) -> str:
        cost = (replace(CHARGE, release=f"round {number}"),)
        return digest_of(release(tmp_path, f"round {number}", cost, forget=f"round {number - 3}"))

    fourth, first = order(4), order(1)
    assert [order(number) for number in (4, 1, 4, 1)] == [fourth, first, fourth, first]
    assert charged_releases(tmp_path) == ["round 4", "round 1"]


def test_replaced_value_is_not_drawn_again(tmp_path: Path) -> None:
    release(tmp_path)
    release(tmp_path, "round 4", (replace(CHARGE, release="round 4", epsilon=2.0),), forget="round 1")
    assert not (tmp_path / "round 1.safetensors").exists()
    with failed(RunFailed, "round 1.safetensors", "released before"):
        release(tmp_path)


def test_derived_draws_give_the_same_release_in_another_directory(tmp_path: Path) -> None:
    actual = [release(tmp_path / name, draws=draws_of(3)) for name in ("one", "other")]
    assert digest_of(actual[0]) == digest_of(actual[1])


def test_a_release_beyond_the_budget_draws_nothing_and_charges_nothing(tmp_path: Path) -> None:
    release(tmp_path)
    release(tmp_path, "round 2", (replace(CHARGE, release="round 2", epsilon=2.0),))

    def unreached(draws: Draws) -> Message:
        raise AssertionError("drawn beyond the budget")

    with failed(BudgetSpent, "round 3", "ε 4.1"):
        release(tmp_path, "round 3", (replace(CHARGE, release="round 3", epsilon=0.1),), mechanism=unreached)
    assert len(charged_releases(tmp_path)) == 3


def test_released_value_can_be_repeated_after_the_budget_is_spent(tmp_path: Path) -> None:
    first = release(tmp_path)
    release(tmp_path, "round 2", (replace(CHARGE, release="round 2", epsilon=2.0),))
    assert digest_of(release(tmp_path)) == digest_of(first)


@pytest.mark.parametrize(
    ("first_line", "name", "keyword"), [(None, "round 1", "round 1, selection"), (b"{}\n", "round 2", "damaged")]
)
def test_log_without_a_charge_or_with_a_damaged_one_is_refused(
    first_line: bytes | None, name: str, keyword: str, tmp_path: Path
) -> None:
    release(tmp_path)
    log = tmp_path / CHARGES
    log.write_bytes(b"" if first_line is None else first_line + log.read_bytes())
    with failed(RunFailed, "charges.jsonl", keyword):
        release(tmp_path, name)


def test_a_damaged_value_is_refused_and_not_drawn_again(tmp_path: Path) -> None:
    release(tmp_path)
    path = tmp_path / "round 1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with refused("round 1.safetensors", "damaged", "new"):
        release(tmp_path)


@pytest.mark.parametrize("name", ["", "../up", "Round", "a/b", "a" * 101])
def test_release_name_must_be_a_plain_file_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name"):
        release(tmp_path, name)


def test_cost_of_a_release_lists_each_charge_and_the_running_total(tmp_path: Path) -> None:
    release(tmp_path)
    actual = stated_cost(release(tmp_path, "round 2", (replace(CHARGE, release="round 2, sums"),)), "derived")
    assert actual is not None
    assert actual.figures["total"]["epsilon"] == 3.0
    assert actual.figures["total"]["delta"] == pytest.approx(2e-5)
    assert actual.figures["total"]["tight_epsilon"] < 3.0
    (one,) = actual.figures["releases"]
    assert (one["mechanism"], one["sensitivity"], one["sigma"], one["epsilon"]) == ("gaussian", 1.0, 4.0, 1.0)
    for words in ("gaussian × 1, σ 4, Δ 1, ε 1, δ 1e-05", "so far ε 3, δ 2e-05 by their sum", "protects nobody"):
        assert words in actual.guarantee
    json.dumps(actual.figures)


@pytest.mark.parametrize("row", [[9.0, 0, 1, 0, 1, 1, 1], [0, -1.0, 1, 0, 1, 1, 1], [0, 0, 1, 0, 1, 1, 0.5]])
def test_empty_cost_is_refused(row: list[float]) -> None:
    with pytest.raises(RefusedMessage, match=r"^cost: "):
        stated_cost({"cost": torch.tensor([[0.0] * 7, row], dtype=torch.float64)}, "system")


def test_the_value_of_another_site_is_refused_by_name(tmp_path: Path) -> None:
    for site in ("bank", "border"):
        log = Releases(tmp_path / site, Owner(site, "run-1", unnamed=False))
        log.release("round 1", mechanism, (CHARGE,), ALLOWANCE, SystemDraws())
        assert log.find("round 1") is not None
    copyfile(tmp_path / "border" / "round 1.safetensors", tmp_path / "bank" / "round 1.safetensors")
    with refused("bank/round 1.safetensors", "site border", "site bank", "restore"):
        Releases(tmp_path / "bank", Owner("bank", "run-1")).find("round 1")


def test_log_of_another_process_replaces_the_own_one(tmp_path: Path) -> None:
    sender, receiver = tmp_path / "sender", Releases(tmp_path / "receiver")
    receiver.receive(Releases(sender).files())
    assert not receiver.directory.exists()
    first = release(sender)
    receiver.receive(Releases(sender).files())
    second = release(sender, "round 2", ())
    files = Releases(sender).files(receiver.value_files)
    assert files["round 1.safetensors"] is None, "the receiver knows this value"
    receiver.receive(files)
    assert charged_releases(receiver.directory) == charged_releases(sender)
    for name, value in (("round 1", first), ("round 2", second)):
        stored = receiver.find(name)
        assert stored is not None
        assert digest_of(stored) == digest_of(value)
    release(sender, "round 3", (replace(CHARGE, release="round 3, sums"),), forget="round 1")
    receiver.receive(Releases(sender).files(receiver.value_files))
    assert receiver.value_files == {"round 2.safetensors", "round 3.safetensors"}
    assert charged_releases(receiver.directory) == charged_releases(sender)
