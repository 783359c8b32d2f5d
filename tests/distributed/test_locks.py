"""One process per kit and port, and its lines on the terminal."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.refusals import failed, refused

from fedvisage.base.errors import RunFailed
from fedvisage.nvflare.kits import hold_directories, hold_port
from fedvisage.nvflare.rehearsal import free_port
from fedvisage.nvflare.terminal import LOG, output_to_log

HOLDER = """
import sys
from pathlib import Path
from fedvisage.nvflare.kits import hold_directories, hold_port
with hold_directories(Path(sys.argv[1])), hold_port(int(sys.argv[2])):
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_second_process_names_the_holder_and_a_killed_holder_releases(tmp_path: Path) -> None:
    """No process listens on the port, as when two servers start at the same moment."""
    port = free_port()
    command = [sys.executable, "-c", HOLDER, str(tmp_path), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with refused(tmp_path, str(holder.pid)), hold_directories(tmp_path):
            pass
        if sys.platform == "linux":
            with failed(RunFailed, f"port {port}"), hold_port(port):
                pass
        holder.kill()
        holder.wait(20)
    with hold_directories(tmp_path), hold_port(port):
        pass


def test_kit_and_state_may_be_the_same_directory(tmp_path: Path) -> None:
    with hold_directories(tmp_path, tmp_path / "state", tmp_path):
        assert (tmp_path / "state").is_dir()


def test_port_with_a_shared_listener_is_refused() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with failed(RunFailed, f"port {port}"), hold_port(port):
            pass
    with hold_port(port):
        pass


def test_library_output_is_written_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with output_to_log(tmp_path, verbose=False):
        os.write(1, b"noise\n")
        os.write(2, b"more noise\n")
    os.write(1, b"a line\n")
    assert capfd.readouterr() == ("a line\n", "")
    assert (tmp_path / LOG).read_text() == "noise\nmore noise\n"
    with output_to_log(tmp_path, verbose=True):
        os.write(2, b"shown\n")
    assert capfd.readouterr().err == "shown\n"
