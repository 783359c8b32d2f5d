"""Worker processes: signals to the process that started them, and their end with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedvisage.base.parallel import LastingProcess
from fedvisage.base.processes import worker_processes

WORK = """
import os, threading

def work(number):
    os.write(1, b"working\\n")  # in one piece, as the processes share the pipe
    threading.Event().wait(600)
"""
PROGRAM = """
import sys
from endless import work
from fedvisage.cli.options import exit_on_sigterm, interruptible
from fedvisage.base.errors import RunFailed
from fedvisage.base.processes import block_signals, worker_processes

def main():
    try:
        with exit_on_sigterm(), interruptible("what is left"), worker_processes(2) as pool:
            with block_signals():
                running = [pool.submit(work, number) for number in range(9)]
            running[0].result()
    except RunFailed as error:
        sys.exit(f"{error} [{error.code}]")

if __name__ == "__main__":
    main()
"""
Start = Callable[[], tuple["subprocess.Popen[str]", list[psutil.Process]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program with two workers that never end, in a group of its own; it is running when this returns."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "endless.py").write_text(WORK)
    started: list[subprocess.Popen[str]] = []

    def begin() -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        running = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(running)
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == ["working\n"] * 2
        return running, psutil.Process(running.pid).children(recursive=True)

    yield begin
    for running in started:
        if running.poll() is None:
            running.kill()
        running.communicate()


@pytest.mark.long
@pytest.mark.parametrize("to", [os.kill, os.killpg])
@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGINT, "interrupted; what is left [130]"), (signal.SIGTERM, "ended by SIGTERM; what is left [143]")],
)
def test_a_signal_to_the_program_or_to_all_ends_it_with_its_workers(
    start: Start, to: Callable[[int, int], None], number: signal.Signals, message: str
) -> None:
    running, children = start()
    to(running.pid, number)
    assert running.communicate(timeout=600)[1] == message + "\n"
    assert psutil.wait_procs(children, timeout=600)[1] == []


@pytest.mark.long
def test_workers_do_not_outlive_a_killed_program(start: Start) -> None:
    running, children = start()
    os.kill(running.pid, signal.SIGKILL)
    running.wait(600)
    assert psutil.wait_procs(children, timeout=600)[1] == []


@pytest.mark.long
def test_killed_worker_fails_the_run(start: Start) -> None:
    running, children = start()
    worker = next(child for child in children if "spawn_main" in " ".join(child.cmdline()))
    worker.kill()
    message = running.communicate(timeout=600)[1]
    assert "died" in message
    assert message.endswith("[1]\n")
    assert psutil.wait_procs(children, timeout=600)[1] == []


def test_a_script_without_a_guard_can_use_workers_and_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "as_users_write_them.py"
    script.write_text(
        "from math import sqrt\n"
        "from fedvisage.base.parallel import map_in_order\n"
        "print(list(map_in_order(sqrt, [4.0, 9.0], 2, torch=False)), __file__)\n"
    )
    process = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert (process.returncode, process.stdout) == (0, f"[2.0, 3.0] {script}\n"), process.stderr


SIZE = 1 << 28
"""Bytes of a result that takes long enough to be interrupted."""


def return_large_result(started: Path) -> bytes:
    """Mark the job as started, and return a large result."""
    started.touch()
    return bytes(SIZE)


def wait_for_a_part(started: Path) -> None:
    """Wait until this process has received a part of the result."""
    while not started.exists():
        pass
    counters = psutil.Process().io_counters
    before = counters().read_chars
    while counters().read_chars < before + SIZE // 4:
        pass


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the counters of Linux")
def test_processes_killed_while_sending_a_result_end(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), worker_processes(1) as pool:
        pool.submit(return_large_result, tmp_path / "pool")
        wait_for_a_part(tmp_path / "pool")
        raise KeyboardInterrupt
    process = LastingProcess()
    result = process.submit(return_large_result, tmp_path / "lasting")
    wait_for_a_part(tmp_path / "lasting")
    process.end()
    with pytest.raises(BrokenProcessPool):
        result.result()
