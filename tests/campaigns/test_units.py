"""A machine of the soak: started again as systemd would, ended with all it started, and those that stay counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from campaigns.soak.mischief import Federation
from campaigns.soak.units import LEFT_ALONE, Unit, families

SLEEPER = "import time; time.sleep(600)"
PARENT = f"""
import signal, subprocess, sys
from pathlib import Path
words = [sys.executable, "-c", {SLEEPER!r}]
child = subprocess.Popen(words, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
signal.pause()
"""
"""Starts a process that belongs to no group of its own, and leaves it behind when it is asked to end."""

Make = Callable[..., Unit]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Unit] = []

    def unit(program: str, *words: str) -> Unit:
        command = [sys.executable, "-c", program, *words]
        made.append(Unit("A", str(tmp_path), command, tmp_path, tmp_path / "log", pause=0.0, stopping=0.5))
        return made[-1]

    yield unit
    for one in made:
        one.kill()


def started(unit: Unit) -> subprocess.Popen[bytes]:
    """Start a machine and return its command's process."""
    unit.start()
    assert unit.process is not None
    return unit.process


@pytest.mark.parametrize("code", [0, 1, LEFT_ALONE])
def test_a_command_that_ended_is_started_again_unless_its_call_was_wrong(make: Make, code: int) -> None:
    unit = make(f"import sys; sys.exit({code})")
    first = started(unit)
    assert first.wait() == code
    unit.look()
    assert unit.codes == [code]
    assert unit.wanted == (code != LEFT_ALONE)
    assert (unit.process is first) == (code == LEFT_ALONE)
    if unit.process is not first:
        unit.process.wait()


def test_what_runs_is_left_alone(make: Make) -> None:
    unit = make(SLEEPER)
    process = started(unit)
    unit.look()
    assert unit.process is process
    assert unit.codes == []


def with_child(make: Make, tmp_path: Path) -> tuple[Unit, psutil.Process]:
    """Return a machine whose command has started another process."""
    said = tmp_path / "child"
    unit = make(PARENT, str(said))
    process = started(unit)
    while not said.exists() or not said.read_text():
        assert process.poll() is None
    return unit, psutil.Process(int(said.read_text()))


def test_all_that_a_command_started_belongs_to_its_machine(make: Make, tmp_path: Path) -> None:
    unit, child = with_child(make, tmp_path)
    assert unit.process is not None
    assert [one.pid for one in unit.family()] == [unit.process.pid, child.pid]
    unit.kill()
    unit.process.wait()
    child.wait(600)
    assert families(str(tmp_path)) == {}


def test_who_outlives_its_command_is_counted_and_killed(make: Make, tmp_path: Path) -> None:
    unit, child = with_child(make, tmp_path)
    assert unit.end() == 1
    child.wait(600)
    assert unit.process is not None
    assert unit.process.returncode == 0, "the command itself ended as it was asked to"


def test_a_machine_that_ends_in_order_leaves_nobody(make: Make) -> None:
    unit = make(SLEEPER)
    started(unit)
    assert unit.end() == 0


def test_what_nobody_was_there_for_did_not_happen(make: Make, tmp_path: Path) -> None:
    """A process for a job can only be killed while there is one; the table would count what changed nothing."""
    unit, child = with_child(make, tmp_path)
    federation = Federation({"A": unit}, {}, own_disks=False, kill_operator=lambda: False)
    assert federation.kill_job("A")
    child.wait(600)
    assert not federation.kill_job("A")
    assert federation.kill("A")
    assert unit.process is not None
    unit.process.wait()
    assert not federation.kill("A")
