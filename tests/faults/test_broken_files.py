"""Damaged, missing, unfinished and unwritable files of a run are refused by name or ignored."""

import hashlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.faults.machine import FAILED, FINISHED, KILLED, REFUSED, Machine
from tests.refusals import failed, refused
from tests.toy import Sets, deterministic_files, run_toy, tree

from fedvisage.base.errors import RunFailed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def half(sets: Sets, tmp_path_factory: pytest.TempPathFactory, machine: Machine) -> Path:
    """A run with private state that was killed right after the checkpoint of its round before the last."""
    half_run, least, most = Path(), 0, 256
    while most - least > 1:
        out, number = tmp_path_factory.mktemp("half") / "run", (least + most) // 2
        machine.run(tree(sets, training__optimizer__state="kept"), out, kill_at=number)
        if (out / "checkpoints" / "000002.safetensors").exists():
            half_run, most = out, number
        else:
            least = number
    return half_run


@pytest.fixture
def stopped(half: Path, tmp_path: Path) -> Path:
    """A copy of that run for one test."""
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.002, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
def test_damaged_checkpoint_is_refused(share: float, stopped: Path, sets: Sets) -> None:
    newest = max(stopped.glob("checkpoints/*.safetensors"))
    flip(newest, int(share * (newest.stat().st_size - 1)))
    with refused("checkpoints/000002.safetensors", "delete"):
        run_toy(tree(sets, training__optimizer__state="kept"), stopped, resume=True)


def test_resume_from_the_earlier_checkpoint_gives_the_same_files(stopped: Path, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__optimizer__state="kept")
    max(stopped.glob("checkpoints/*.safetensors")).unlink()
    run_toy(content, stopped, resume=True)
    run_toy(content, tmp_path / "whole")
    assert deterministic_files(stopped) == deterministic_files(tmp_path / "whole")


def test_damaged_private_state_is_refused(stopped: Path, sets: Sets) -> None:
    newest = stopped / "sites" / "B" / "generation-000002.safetensors"
    flip(newest, newest.stat().st_size // 2)
    with refused("sites/B/generation-000002.safetensors", "private state"):
        run_toy(tree(sets, training__optimizer__state="kept"), stopped, resume=True)


def test_missing_private_state_ends_the_run(stopped: Path, sets: Sets) -> None:
    (stopped / "sites" / "B" / "generation-000002.safetensors").unlink()
    with failed(RunFailed, "generation 2", "private state"):
        run_toy(tree(sets, training__optimizer__state="kept"), stopped, resume=True)


def test_unfinished_files_are_ignored_and_removed(stopped: Path, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__optimizer__state="kept")
    newest = max(stopped.glob("checkpoints/*.safetensors"))
    leftover = newest.with_name(".000003.safetensors.123.part")
    leftover.write_bytes(newest.read_bytes()[:1000])
    run_toy(content, stopped, resume=True)
    run_toy(content, tmp_path / "whole")
    assert not leftover.exists()
    assert deterministic_files(stopped) == deterministic_files(tmp_path / "whole")


@pytest.mark.parametrize("name", ["ledger.jsonl", "rounds.jsonl"])
def test_shortened_ledger_is_refused(name: str, stopped: Path, sets: Sets) -> None:
    (stopped / name).write_bytes((stopped / name).read_bytes()[:100])
    with refused(stopped / name, "checkpoint"):
        run_toy(tree(sets, training__optimizer__state="kept"), stopped, resume=True)


def test_run_beyond_the_file_size_limit_fails_and_can_be_resumed(machine: Machine, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets)
    assert machine.run(content, tmp_path / "whole").how == FINISHED
    largest = max(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    ledger = (tmp_path / "whole" / "ledger.jsonl").stat().st_size
    for limit in (2_000, ledger // 2, largest - 1):
        end = machine.run(content, tmp_path / "run", largest_file=limit)
        assert end.how == FAILED
        assert "ulimit -f" in end.message
        assert "--resume" in end.message
        assert not list((tmp_path / "run").rglob("*.part"))
    assert machine.run(content, tmp_path / "run").how == FINISHED
    assert deterministic_files(tmp_path / "run") == deterministic_files(tmp_path / "whole")


def test_second_process_in_a_directory_is_refused(machine: Machine, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__rounds=1000)
    machine.start(content, tmp_path / "run")
    while not (tmp_path / "run" / "ledger.jsonl").exists():
        time.sleep(0.01)  # until the other process has begun
    with refused("run", "process"):
        run_toy(content, tmp_path / "run", resume=True)
    os.killpg(machine.pid, signal.SIGKILL)
    assert machine.wait().how == KILLED


def test_resume_with_a_changed_recipe_is_refused(stopped: Path, sets: Sets, machine: Machine) -> None:
    changed = tree(sets, training__optimizer__state="kept", training__optimizer__lr=0.02)
    before = inventory(stopped)
    end = machine.run(changed, stopped)
    assert end.how == REFUSED
    assert "another recipe" in end.message
    assert inventory(stopped) == before


def test_resuming_a_finished_run_changes_no_byte(sets: Sets, tmp_path: Path) -> None:
    first = run_toy(tree(sets), tmp_path / "run")
    before = inventory(tmp_path)
    assert run_toy(tree(sets), tmp_path / "run", resume=True) == first
    assert inventory(tmp_path) == before


def inventory(directory: Path) -> dict[str, tuple[int, str]]:
    """Return time of change and digest of every file."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
