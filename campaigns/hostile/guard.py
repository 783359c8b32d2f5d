"""Observation of a case: its time, memory and files, and events that no input may cause.

An audit hook (``sys.addaudithook``) sees every file that Python opens, creates or removes. Libraries in other languages
bypass it, so the files outside of a case's directory are also compared after each case.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

DEADLINE, CLOCK_DEADLINE = 30.0, 150.0
"""Seconds of processor time and of clock time per case; on two idle cores, none needs ten."""

MEMORY = 3 << 30
"""Bytes that a case may allocate, in addition to those of the process before the first case."""

SECRET = "sentinel"
"""The name of a directory outside, which no case may read or write."""

SECRET_TEXT = "nobody reads this"
"""The content of its files."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rmdir": 1,
    "os.rename": 2,
    "os.link": 2,
    "os.symlink": 0,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "shutil.rmtree": 1,
}
"""Events that change the file system, by the number of leading paths; a link inside may have any target."""

FORBIDDEN = (
    *("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"),
)
"""Events that no file and no message may cause."""


class DeadlineExceeded(BaseException):
    """A case has passed its deadline; no Exception, so that the program does not handle it as a damaged file."""


@dataclass
class Observation:
    """The observation of one case."""

    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    links: bool = False
    """True if the case may read through a link in its directory."""
    memory: int = 0
    """Growth of the process at its peak, in bytes."""


class Guard:
    """Watches one case after another; a process has one guard, because audit hooks cannot be removed."""

    def __init__(self, base: Path) -> None:
        """Write the sentinel files and install the hook."""
        self.base, self.place = base.resolve(), base.resolve() / "place"
        self._observation: Observation | None = None
        self.sentinel = self.base / SECRET
        (self.sentinel / "deeper").mkdir(parents=True)
        for name in ("secret.txt", "deeper/secret.png"):
            (self.sentinel / name).write_text(SECRET_TEXT)
        self._outside = self._list_outside()
        sys.dont_write_bytecode = True
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGPROF, _raise_deadline)
        signal.signal(signal.SIGALRM, _raise_deadline)

    def limit_memory(self) -> None:
        """Limit the memory of this process; called after all that cases need is loaded."""
        limit = _memory_status("VmSize") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    @contextmanager
    def watch(self, *, links: bool = False) -> Iterator[Observation]:
        """Watch one case, whose files must be in ``place``."""
        observation, before, began = Observation(links=links), _reset_peak_memory(), time.monotonic()
        self._observation = observation
        signal.setitimer(signal.ITIMER_PROF, DEADLINE)
        signal.setitimer(signal.ITIMER_REAL, CLOCK_DEADLINE)
        try:
            yield observation
        except DeadlineExceeded:
            observation.findings.append(
                f"was not finished after {DEADLINE:g} s of the processor, or {CLOCK_DEADLINE:g} s"
            )
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._observation = None
            observation.seconds, observation.memory = time.monotonic() - began, max(0, _memory_status("VmHWM") - before)
        observation.findings += [f"reveals the target of a link, in {name}" for name in self._find_leaks()]
        if (now := self._list_outside()) != self._outside:
            changes = sorted(set(now.items()) ^ set(self._outside.items()))[:3]
            observation.findings.append(f"changed files outside: {changes}")
            self._outside = now

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        observation = self._observation
        if observation is None:
            return
        if event in FORBIDDEN:
            observation.findings.append(f"caused {event} {str(arguments)[:100]}")
        elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            self._check_open(observation, os.fsdecode(arguments[0]), flags)
        elif event in CHANGES:
            for path in arguments[: CHANGES[event]]:
                if isinstance(path, str | bytes | os.PathLike) and not self._is_inside(os.fsdecode(path)):
                    observation.findings.append(f"{event} outside of its directory: {os.fsdecode(path)}")

    def _check_open(self, observation: Observation, path: str, flags: int) -> None:
        real = os.path.realpath(path)
        is_through_link = observation.links and os.path.abspath(path).startswith(f"{self.place}{os.sep}")
        if real.startswith(f"{self.sentinel}{os.sep}") and not is_through_link:
            observation.findings.append(f"read outside of its directory: {path}")
        elif flags & WRITING and not real.startswith("/dev/") and not self._is_inside(path):
            observation.findings.append(f"wrote outside of its directory: {path}")

    def _is_inside(self, path: str) -> bool:
        if not os.path.isabs(path) and os.sep not in path:
            return True  # below an open directory, as shutil.rmtree names what it removes
        parent = os.path.realpath(os.path.dirname(path) or ".")
        return f"{parent}{os.sep}".startswith(f"{self.place}{os.sep}") or os.path.realpath(path) == str(self.place)

    def _find_leaks(self) -> list[str]:
        """Return the files of the case that contain the sentinel's text."""
        leaks = []
        for folder, _, files in os.walk(self.place):
            for path in (os.path.join(folder, name) for name in files):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20 and status.st_mode & stat.S_IRUSR:
                    with open(path, "rb") as file:
                        leaks += [path] if SECRET_TEXT.encode() in file.read() else []
        return leaks

    def _list_outside(self) -> dict[str, tuple[int, int]]:
        """Return the size and modification time of each file outside of the case's directory."""
        files_outside = {}
        for folder, folders, files in os.walk(self.base):
            if folder == str(self.base):
                folders[:] = [name for name in folders if name not in ("place", "prepared")]
            for name in files:
                status = os.lstat(os.path.join(folder, name))
                files_outside[os.path.join(folder, name)] = (status.st_size, status.st_mtime_ns)
        return files_outside


def _raise_deadline(number: int, frame: FrameType | None) -> None:
    raise DeadlineExceeded


def _reset_peak_memory() -> int:
    """Reset the peak of the memory, where the system can, and return the present size."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _memory_status("VmHWM")
    return _memory_status("VmRSS")


def _memory_status(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)
