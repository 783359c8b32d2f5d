"""A run that is killed, however often and wherever, ends in the same bytes as one that was left alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.contract.examples import released, split
from tests.faults.machine import FINISHED, KILLED, Machine
from tests.toy import deterministic_files, tree

from fedvisage.base.streams import numpy_rng
from fedvisage.methods.pad import fedpad

METHODS = (fedpad.METHOD, fedpad.SINGLE, split.METHOD, released.METHOD)
KILLS = 5
"""At least so many for each method and way of killing: 40 in all."""
PATIENCE = 8
"""After so many kills a run is left alone, lest it never ends on a machine that has become slow."""


@dataclass(frozen=True)
class Whole:
    """A run that was left alone."""

    content: dict[str, Any]
    files: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="module", params=METHODS, ids=lambda method: method.name)
def whole(
    request: pytest.FixtureRequest, machine: Machine, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Whole:
    """A run in which the sites keep private state."""
    content = tree(sets, request.param, training__optimizer__state="kept")
    out, began = tmp_path_factory.mktemp(request.param.name) / "whole", time.monotonic()
    assert machine.run(content, out).how == FINISHED
    return Whole(content, deterministic_files(out), time.monotonic() - began)


def test_killed_at_random_file_operations(machine: Machine, whole: Whole, tmp_path: Path) -> None:
    draws, kills, runs = numpy_rng(0, "operations", whole.content["method"]["name"]), 0, 0
    while kills < KILLS:
        out, runs, patience, sent = tmp_path / str(runs), runs + 1, PATIENCE, list[dict[str, Any]]()
        while machine.run(whole.content, out, kill_at=int(draws.integers(1, 150)) if patience else None).how == KILLED:
            kills, patience, sent = kills + 1, patience - 1, extended(sent, out)
        extended(sent, out)
        assert deterministic_files(out) == whole.files
        assert not list(out.rglob("*.part")), "half-written files are swept away"


def test_killed_at_random_moments(machine: Machine, whole: Whole, tmp_path: Path) -> None:
    draws, kills, runs = numpy_rng(0, "moments", whole.content["method"]["name"]), 0, 0
    while kills < KILLS:
        out, runs, patience, sent = tmp_path / str(runs), runs + 1, PATIENCE, list[dict[str, Any]]()
        while (
            machine.run(whole.content, out, kill_after=draws.random() * whole.seconds if patience else None).how
            == KILLED
        ):
            kills, patience, sent = kills + 1, patience - 1, extended(sent, out)
        extended(sent, out)
        assert deterministic_files(out) == whole.files


def extended(sent: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Read what a run has sent so far, and check that nothing is missing of what it had sent at an earlier kill."""
    path = out / "ledger.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # behind the last end of line: nothing, or torn
    rows = [{key: value for key, value in json.loads(line).items() if key != "repeated"} for line in lines]
    assert rows[: len(sent)] == sent
    return rows


@pytest.fixture(scope="module")
def short(machine: Machine, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run of one round that was left alone."""
    content = tree(sets, training__rounds=1, evaluation__every=0)
    out, began = tmp_path_factory.mktemp("short") / "whole", time.monotonic()
    assert machine.run(content, out).how == FINISHED
    return Whole(content, deterministic_files(out), time.monotonic() - began)


@pytest.mark.parametrize("operation", range(1, 9))
def test_killed_at_one_of_the_first_file_operations(
    operation: int, machine: Machine, short: Whole, tmp_path: Path
) -> None:
    assert machine.run(short.content, tmp_path / "run", kill_at=operation).how == KILLED
    assert machine.run(short.content, tmp_path / "run").how == FINISHED
    assert deterministic_files(tmp_path / "run") == short.files
