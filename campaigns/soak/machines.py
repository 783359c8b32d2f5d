"""Machines of the soak: each is a command that a supervisor restarts, as the systemd unit of deploy.md does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "FEDVISAGE_SOAK"
"""An environment variable with the machine's name, which all processes of the machine inherit."""

RESTART_DELAY = 3.0
"""Seconds until an ended command is restarted: RestartSec."""

NO_RESTART = 2
"""The exit code after which a command is not restarted: RestartPreventExitStatus."""

STOP_TIMEOUT = 15.0
"""Seconds from SIGTERM to SIGKILL."""


def find_processes(root: str) -> dict[str, list[psutil.Process]]:
    """Return the living processes of each machine of a soak, independent of their parents."""
    processes: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK, "")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
            continue
        directory, _, machine = mark.rpartition("/")
        if machine and directory == root:
            processes.setdefault(machine, []).append(process)
    return processes


def environment_of(root: str, name: str) -> dict[str, str]:
    """Return the environment of a machine's processes."""
    return os.environ | {MARK: f"{root}/{name}", "OMP_NUM_THREADS": "1", "TMPDIR": f"{root}/tmp"}


def send_signal(process: psutil.Process, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


@dataclass
class Machine:
    """A machine: its command, disk and log, and the current process of the command."""

    name: str
    root: str
    command: Sequence[str]
    disk: Path
    log: Path
    restart_delay: float = RESTART_DELAY
    stop_timeout: float = STOP_TIMEOUT
    process: subprocess.Popen[bytes] | None = None
    enabled: bool = True
    codes: list[int] = field(default_factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command and return its process."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_of(self.root, self.name),
                start_new_session=True,
            )
        return self.process

    def processes(self) -> list[psutil.Process]:
        """Return all living processes of this machine, the command's own first."""
        own = find_processes(self.root).get(self.name, [])
        return sorted(own, key=lambda each: (self.process is None or each.pid != self.process.pid, each.pid))

    def kill(self) -> int:
        """Kill all processes of this machine, and return their number."""
        processes = self.processes()
        for process in processes:
            send_signal(process, signal.SIGKILL)
        return len(processes)

    def shut_down(self) -> None:
        """Send SIGTERM to all processes, as systemd does, and SIGKILL to those that remain."""
        processes = self.processes()
        for process in processes:
            send_signal(process, signal.SIGTERM)
        psutil.wait_procs(processes, timeout=self.stop_timeout)
        self.kill()

    def terminate(self) -> int:
        """Terminate the command alone, kill the processes that remain, and return their number."""
        processes = self.processes()
        if self.process is not None:
            self.process.terminate()
        _, remaining = psutil.wait_procs(processes, timeout=self.stop_timeout)
        self.kill()
        if self.process is not None:
            self.process.wait()
        return len(remaining)

    def restart_if_ended(self) -> None:
        """If the command has ended, kill the processes that it left and start it again."""
        if self.process is None or self.process.poll() is None or not self.enabled:
            return
        self.codes.append(self.process.returncode)
        self.kill()
        if self.process.returncode == NO_RESTART:
            self.enabled = False
            return
        time.sleep(self.restart_delay)
        if self.enabled:
            self.start()


class Supervisor:
    """Restarts the machines' commands, each in a thread of its own."""

    def __init__(self, machines: Mapping[str, Machine]) -> None:
        self.machines, self._stop = machines, threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(each,), daemon=True) for each in machines.values()]

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """Stop all machines; return the number of processes that had to be killed after their command ended."""
        for machine in self.machines.values():
            machine.enabled = False
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with ThreadPoolExecutor(len(self.machines)) as pool:
            return sum(pool.map(Machine.terminate, self.machines.values()))

    def _watch(self, machine: Machine) -> None:
        while not self._stop.wait(0.5):
            machine.restart_if_ended()
