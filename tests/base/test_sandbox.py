"""A sandboxed process has no network, starts no processes, writes no files, and has little memory."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedvisage.base.processes import can_sandbox, enter_sandbox

pytestmark = [pytest.mark.skipif(not can_sandbox(), reason="this system has no sandbox"), pytest.mark.long]


def connect() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()


def begin_a_process() -> None:
    os.posix_spawn("/bin/true", ["/bin/true"], {})


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def write() -> None:
    Path(os.environ["SANDBOXED_FILE"]).write_bytes(b"x" * 100_000)


def take_memory() -> None:
    bytearray(200 << 20)


def compute() -> None:
    assert sum(range(1000)) == 499_500


def work_in_sandbox(work: Callable[[], None], out: Connection) -> None:
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    enter_sandbox(64 << 20)
    try:
        work()
        out.send_bytes(b"done")
    except (OSError, MemoryError) as error:
        out.send_bytes(type(error).__name__.encode())


def run_sandboxed(work: Callable[[], None]) -> str:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work_in_sandbox, args=(work, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv_bytes().decode()
    finally:
        process.join()


def test_sandboxed_process_has_no_network_processes_files_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXED_FILE", str(tmp_path / "written"))
    jobs = (connect, begin_a_process, fork, write, take_memory, compute)
    assert {job.__name__: run_sandboxed(job) for job in jobs} == {
        "connect": "PermissionError",
        "begin_a_process": "PermissionError",
        "fork": "PermissionError",
        "write": "OSError",
        "take_memory": "MemoryError",
        "compute": "done",
    }
    assert not (tmp_path / "written").exists() or (tmp_path / "written").stat().st_size == 0
