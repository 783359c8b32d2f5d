"""A process that is closed off has no network, starts nothing, writes nothing, and has little memory."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedvisage.base.processes import can_sandbox, enter_sandbox

pytestmark = pytest.mark.skipif(not can_sandbox(), reason="this system closes no process off")


def connect() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()


def begin_a_process() -> None:
    os.posix_spawn("/bin/true", ["/bin/true"], {})


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def write() -> None:
    Path(os.environ["CLOSED_FILE"]).write_bytes(b"x" * 100_000)


def take_memory() -> None:
    bytearray(200 << 20)


def compute() -> None:
    assert sum(range(1000)) == 499_500


def _closed(work: Callable[[], None], out: Connection) -> None:
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    enter_sandbox(64 << 20)
    try:
        work()
        out.send_bytes(b"done")
    except (OSError, MemoryError) as error:
        out.send_bytes(type(error).__name__.encode())


def run_closed(work: Callable[[], None]) -> str:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_closed, args=(work, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv_bytes().decode()
    finally:
        process.join()


def test_sandboxed_process_has_no_network_processes_files_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSED_FILE", str(tmp_path / "written"))
    actual = {work.__name__: run_closed(work) for work in (connect, begin_a_process, fork, write, take_memory, compute)}
    assert actual == {
        "connect": "PermissionError",
        "begin_a_process": "PermissionError",
        "fork": "PermissionError",
        "write": "OSError",
        "take_memory": "MemoryError",
        "compute": "done",
    }
    assert not (tmp_path / "written").exists() or (tmp_path / "written").stat().st_size == 0
