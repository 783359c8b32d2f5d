"""A killed and resumed run ends in the bytes of an uninterrupted run."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.contract.examples import released, split
from tests.faults.machine import FINISHED, KILLED, Machine
from tests.toy import Sets, deterministic_files, tree

from fedvisage.base.streams import numpy_rng
from fedvisage.methods.pad import fedpad

pytestmark = pytest.mark.long

METHODS = (fedpad.METHOD, fedpad.SINGLE, split.METHOD, released.METHOD)
KILLS = 5
"""The least number of kills per method and kind of kill: 40 in total."""
PATIENCE = 8
"""The largest number of kills of a run, so that it also ends on a slow machine."""


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run."""

    content: dict[str, Any]
    files: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="module", params=METHODS, ids=lambda method: method.name)
def whole(
    request: pytest.FixtureRequest, machine: Machine, sets: Sets, tmp_path_factory: pytest.TempPathFactory
) -> Whole:
    """A run in which the sites keep private state."""
    content = tree(sets, request.param, training__optimizer__state="kept")
    out, began = tmp_path_factory.mktemp(request.param.name) / "whole", time.monotonic()
    assert machine.run(content, out).how == FINISHED
    return Whole(content, deterministic_files(out), time.monotonic() - began)


@pytest.mark.parametrize("kind", ["operations", "moments"])
def test_run_killed_at_random_ends_in_the_same_bytes(kind: str, machine: Machine, whole: Whole, tmp_path: Path) -> None:
    draws, kills, runs = numpy_rng(0, kind, whole.content["method"]["name"]), 0, 0

    def draw_kill() -> dict[str, Any]:
        if kind == "operations":
            return {"kill_at": int(draws.integers(1, 150))}
        return {"kill_after": draws.random() * whole.seconds}

    while kills < KILLS:
        out, runs, patience, sent = tmp_path / str(runs), runs + 1, PATIENCE, list[dict[str, Any]]()
        while (end := machine.run(whole.content, out, **(draw_kill() if patience else {}))).how == KILLED:
            kills, patience, sent = kills + 1, patience - 1, read_ledger(out, sent)
        assert end.how == FINISHED, end.message
        read_ledger(out, sent)
        assert deterministic_files(out) == whole.files
        assert not list(out.rglob("*.part")), "unfinished files are removed"


def read_ledger(out: Path, sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read the ledger of a run, and check that it contains all lines of an earlier kill."""
    path = out / "ledger.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # without a truncated last line
    rows = [{key: value for key, value in json.loads(line).items() if key != "repeated"} for line in lines]
    assert rows[: len(sent)] == sent
    return rows


@pytest.fixture(scope="module")
def short(machine: Machine, sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An uninterrupted run of one round."""
    content = tree(sets, split.METHOD, training__rounds=1, evaluation__every=0)
    out, began = tmp_path_factory.mktemp("short") / "whole", time.monotonic()
    assert machine.run(content, out).how == FINISHED
    return Whole(content, deterministic_files(out), time.monotonic() - began)


@pytest.mark.parametrize("operation", range(1, 9))
def test_run_killed_at_one_of_its_first_file_operations_is_resumed(
    operation: int, machine: Machine, short: Whole, tmp_path: Path
) -> None:
    assert machine.run(short.content, tmp_path / "run", kill_at=operation).how == KILLED
    assert machine.run(short.content, tmp_path / "run").how == FINISHED
    assert deterministic_files(tmp_path / "run") == short.files


@pytest.mark.parametrize("operation", range(1, 13))
def test_run_killed_again_while_it_is_being_resumed_ends_in_the_same_bytes(
    operation: int, machine: Machine, short: Whole, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert machine.run(short.content, out, kill_at=100).how == KILLED
    assert (out / "checkpoints" / "000001.safetensors").exists()
    assert machine.run(short.content, out, kill_at=operation).how == KILLED
    end = machine.run(short.content, out)
    assert end.how == FINISHED, end.message
    assert deterministic_files(out) == short.files
