"""What is watched while hostile input is taken in: time, memory, files, and what no input may set off.

Files are watched twice. Python tells of every file that is opened, made or removed (``sys.addaudithook``); libraries
in other languages do not, so that what lies beside the place of a case is looked at after each one as well.
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

DEADLINE, PATIENCE = 30.0, 150.0
"""Seconds of one case: of the processor, and by the clock; on two idle cores none needs ten."""

MEMORY = 3 << 30
"""Bytes that a case may ask for beside what the process has before the first one."""

SECRET = "sentinel"
"""The name of the tree beside, which nobody may read or write."""

WORDS = "nobody reads this"
"""What its files hold."""

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
"""Events that change the file system, and how many paths they begin with; links are made inside, wherever they lead."""

NEVER = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
"""What no file and no message may set off."""


class Late(BaseException):
    """A case has passed its deadline; not an Exception, so that nothing takes it for a damaged file."""


@dataclass
class Seen:
    """What was noticed of one case."""

    wrongs: list[str] = field(default_factory=list)
    seconds: float = 0.0
    links: bool = False
    """Whether a link inside of the place may be read through."""
    grown: int = 0
    """Bytes by which the process grew at its largest."""


class Guard:
    """Watches one case after another; there is one for each process, as an audit hook cannot be taken back."""

    def __init__(self, base: Path) -> None:
        """Plant the sentinel, and bound the memory of this process."""
        self.base, self.place = base.resolve(), base.resolve() / "place"
        self._seen: Seen | None = None
        self.sentinel = self.base / SECRET
        (self.sentinel / "deeper").mkdir(parents=True)
        for name in ("secret.txt", "deeper/secret.png"):
            (self.sentinel / name).write_text(WORDS)
        self._beside = self._listing()
        sys.dont_write_bytecode = True
        sys.addaudithook(self._hear)
        signal.signal(signal.SIGPROF, _late)
        signal.signal(signal.SIGALRM, _late)

    def bound(self) -> None:
        """Bound the memory of this process; called when all that cases need is loaded."""
        limit = _status("VmSize") + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    @contextmanager
    def watching(self, *, links: bool = False) -> Iterator[Seen]:
        """Watch one case, whose files belong into ``place``."""
        seen, before, began = Seen(links=links), _fresh_peak(), time.monotonic()
        self._seen = seen
        signal.setitimer(signal.ITIMER_PROF, DEADLINE)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            yield seen
        except Late:
            seen.wrongs.append(f"was not done after {DEADLINE:g} s of the processor, or {PATIENCE:g} s")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._seen = None
            seen.seconds, seen.grown = time.monotonic() - began, max(0, _status("VmHWM") - before)
        seen.wrongs += [f"tells what lies behind a link, in {name}" for name in self._telling()]
        if (now := self._listing()) != self._beside:
            seen.wrongs.append(f"changed what lies beside: {sorted(set(now.items()) ^ set(self._beside.items()))[:3]}")
            self._beside = now

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        seen = self._seen
        if seen is None:
            return
        if event in NEVER:
            seen.wrongs.append(f"set off {event} {str(given)[:100]}")
        elif event == "open" and isinstance(given[0], str | bytes | os.PathLike):
            self._opened(seen, os.fsdecode(given[0]), given[2] if isinstance(given[2], int) else 0)
        elif event in CHANGES:
            for path in given[: CHANGES[event]]:
                if isinstance(path, str | bytes | os.PathLike) and not self._inside(os.fsdecode(path)):
                    seen.wrongs.append(f"{event} outside of its place: {os.fsdecode(path)}")

    def _opened(self, seen: Seen, path: str, flags: int) -> None:
        real = os.path.realpath(path)
        through = seen.links and os.path.abspath(path).startswith(f"{self.place}{os.sep}")
        if real.startswith(f"{self.sentinel}{os.sep}") and not through:
            seen.wrongs.append(f"read outside of its place: {path}")
        elif flags & WRITING and not real.startswith("/dev/") and not self._inside(path):
            seen.wrongs.append(f"wrote outside of its place: {path}")

    def _inside(self, path: str) -> bool:
        if not os.path.isabs(path) and os.sep not in path:
            return True  # below an open directory, as shutil.rmtree names what it removes
        parent = os.path.realpath(os.path.dirname(path) or ".")
        return f"{parent}{os.sep}".startswith(f"{self.place}{os.sep}") or os.path.realpath(path) == str(self.place)

    def _telling(self) -> list[str]:
        """Return the files of the place that hold what the sentinel's hold."""
        found = []
        for folder, _, files in os.walk(self.place):
            for path in (os.path.join(folder, name) for name in files):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20 and status.st_mode & stat.S_IRUSR:
                    with open(path, "rb") as file:
                        found += [path] if WORDS.encode() in file.read() else []
        return found

    def _listing(self) -> dict[str, tuple[int, int]]:
        """Return what lies beside the place, with sizes and times; access does not count."""
        found = {}
        for folder, folders, files in os.walk(self.base):
            if folder == str(self.base):
                folders[:] = [name for name in folders if name not in ("place", "prepared")]
            for name in files:
                status = os.lstat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = (status.st_size, status.st_mtime_ns)
        return found


def _late(number: int, frame: FrameType | None) -> None:
    raise Late


def _fresh_peak() -> int:
    """Forget the largest size so far, where the system can, and return the present one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _status("VmHWM")
    return _status("VmRSS")


def _status(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)
