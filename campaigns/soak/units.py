"""The machines of the soak: each a command that is started again when it ends, as the unit file of deploy.md says."""

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
"""A variable of the environment that names the machine; all that a process starts inherits it."""

PAUSE = 3.0
"""Seconds until a machine's command is started again: RestartSec."""

LEFT_ALONE = 2
"""The exit code after which it is not started again: RestartPreventExitStatus."""

STOPPING = 15.0
"""Seconds from SIGTERM to SIGKILL."""


def families(root: str) -> dict[str, list[psutil.Process]]:
    """Return the living processes of each machine of a soak, wherever they hang in the tree of processes."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK, "")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
            continue
        place, _, name = mark.rpartition("/")
        if name and place == root:
            found.setdefault(name, []).append(process)
    return found


@dataclass
class Unit:
    """A machine: its command, its disk, its log, and the process that runs now."""

    name: str
    root: str
    command: Sequence[str]
    disk: Path
    log: Path
    pause: float = PAUSE
    stopping: float = STOPPING
    process: subprocess.Popen[bytes] | None = None
    wanted: bool = True
    codes: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the command."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.root, self.name),
                start_new_session=True,
            )

    def family(self) -> list[psutil.Process]:
        """Return all living processes of this machine, the command's own first."""
        mine = families(self.root).get(self.name, [])
        return sorted(mine, key=lambda one: (self.process is None or one.pid != self.process.pid, one.pid))

    def kill(self) -> int:
        """Kill all that runs on this machine, at once, and return how many processes that were."""
        family = self.family()
        for process in family:
            send(process, signal.SIGKILL)
        return len(family)

    def stop(self) -> None:
        """Stop it as systemd would: SIGTERM to all, and SIGKILL to those that stay."""
        family = self.family()
        for process in family:
            send(process, signal.SIGTERM)
        psutil.wait_procs(family, timeout=self.stopping)
        self.kill()

    def end(self) -> int:
        """Ask the command alone to end, as a person would; return how many processes stay, which are killed."""
        family = self.family()
        if self.process is not None:
            self.process.terminate()
        _, stay = psutil.wait_procs(family, timeout=self.stopping)
        self.kill()
        if self.process is not None:
            self.process.wait()
        return len(stay)

    def look(self) -> None:
        """Start the command again if it has ended, after all that it left behind was killed."""
        if self.process is None or self.process.poll() is None or not self.wanted:
            return
        self.codes.append(self.process.returncode)
        self.kill()
        if self.process.returncode == LEFT_ALONE:
            self.wanted = False
            return
        time.sleep(self.pause)
        if self.wanted:
            self.start()


class Supervisor:
    """Watches over the machines, each with a thread of its own."""

    def __init__(self, units: Mapping[str, Unit]) -> None:
        self.units, self._over = units, threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(unit,), daemon=True) for unit in units.values()]

    def begin(self) -> None:
        for unit in self.units.values():
            unit.start()
        for thread in self._threads:
            thread.start()

    def end(self) -> int:
        """Stop all machines for good; return how many processes had to be killed after their command was to end."""
        for unit in self.units.values():
            unit.wanted = False
        self._over.set()
        for thread in self._threads:
            thread.join()
        with ThreadPoolExecutor(len(self.units)) as pool:
            return sum(pool.map(Unit.end, self.units.values()))

    def _watch(self, unit: Unit) -> None:
        while not self._over.wait(0.5):
            unit.look()


def environment(root: str, name: str) -> dict[str, str]:
    """Return the environment of a machine's processes."""
    return os.environ | {MARK: f"{root}/{name}", "OMP_NUM_THREADS": "1", "TMPDIR": f"{root}/tmp"}


def send(process: psutil.Process, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
