"""Ray clusters of this machine: nodes on the loopback interface with a token, in a directory of mode 700."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START = Path(__file__).with_name("start_node.py")
STORE = 200_000_000


@dataclass
class Node:
    """The processes of one node: ``ray start --block`` and its children."""

    starter: subprocess.Popen[str]

    def processes(self) -> list[psutil.Process]:
        if self.starter.poll() is not None:
            return []
        return [psutil.Process(self.starter.pid), *psutil.Process(self.starter.pid).children(recursive=True)]

    def workers(self) -> list[psutil.Process]:
        """Return the actors of runs on the node."""
        alive = (process for process in self.processes() if process.status() != psutil.STATUS_ZOMBIE)
        return [process for process in alive if any("WorkerProcess" in word for word in process.cmdline())]

    def kill(self) -> None:
        """Kill all processes of the node at once, as a power failure does."""
        processes = self.processes()
        for process in processes:
            process.kill()
        self.starter.wait(60)
        assert psutil.wait_procs(processes, timeout=60)[1] == []


@dataclass
class Cluster:
    """A head node of one core, and further nodes."""

    folder: Path
    port: int
    nodes: list[Node] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def environment(self, **changes: str) -> dict[str, str]:
        own = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "300",
            "RAY_worker_niceness": "0",  # Ray's 15 starves workers where other tests run
        }
        return {**os.environ, **own, **changes}

    def add_node(self, *, cores: int = 1, gpus: int = 0, **changes: str) -> Node:
        """Start a node, the first of which is the head, and return when it has joined the cluster."""
        place = self.folder / f"node-{len(self.nodes)}"
        (place / "tmp").mkdir(parents=True)
        role = [f"--address={self.address}"]
        if not self.nodes:
            role = [
                "--head",
                f"--port={self.port}",
                "--include-dashboard=false",
                f"--ray-client-server-port={free_port()}",
            ]
        command = [sys.executable, str(START), "start", *role, "--node-ip-address=127.0.0.1", f"--num-cpus={cores}"]
        command += [f"--temp-dir={place}", f"--object-store-memory={STORE}", f"--num-gpus={gpus}", "--block"]
        environment = self.environment(TMPDIR=str(place / "tmp"), HOME=str(place), **changes)
        starter = subprocess.Popen(
            command,
            env=environment,
            cwd=place,
            umask=0o077,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.nodes.append(Node(starter))  # before anything can fail, so that its processes are ended
        assert starter.stdout is not None
        output = []
        for line in starter.stdout:
            output.append(line)
            if "Ray runtime started" in line:
                break
        else:
            raise AssertionError("".join(output))
        return self.nodes[-1]

    def workers(self) -> list[psutil.Process]:
        return [worker for node in self.nodes if node.starter.poll() is None for worker in node.workers()]

    def scratch(self) -> list[Path]:
        """Return the directories of workers on the nodes that run; a killed node keeps its own."""
        running = [number for number, node in enumerate(self.nodes) if node.starter.poll() is None]
        return sorted(path for number in running for path in self.folder.glob(f"node-{number}/tmp/fedvisage-*/*/"))


def free_port() -> int:
    """Return a port that no program uses now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def cluster(*, nodes: int = 2) -> Iterator[Cluster]:
    """Yield a cluster; afterwards none of its processes is left."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short, for the paths of sockets; of mode 700
    started = Cluster(folder, free_port())
    (folder / "token").write_text(secrets.token_hex(32))
    try:
        for _ in range(nodes):
            started.add_node()
        yield started
    finally:
        for node in started.nodes:
            if node.starter.poll() is None:
                processes = node.processes()
                node.starter.send_signal(signal.SIGTERM)
                _, left = psutil.wait_procs(processes, timeout=15)
                for process in left:
                    process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def die_at_first(notes: Path, kills: int) -> str:
    """Kill this process in the first attempts, whose number is the length of a file."""
    with notes.open("a") as file:
        file.write(".")
    if notes.stat().st_size <= kills:
        os.kill(os.getpid(), signal.SIGKILL)
    return "finished"
