"""What a soak measures while it goes on: memory, open files and threads of every process, the dead that stay."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import numpy as np
import psutil
from tests.soak.units import Unit, families

EVERY = 5.0
"""Seconds between two looks."""

WARM = 120.0
"""Seconds of a process' life that do not count: it opens, and NVFlare keeps a thread for 65 s for each message."""

BURIED = 20.0
"""Seconds in which a dead child must be fetched by its parent."""


@dataclass(frozen=True)
class Sample:
    """One process at one moment."""

    at: float
    kind: str
    machine: str
    pid: int
    age: float
    rss_mb: float
    files: int
    threads: int


@dataclass
class Watch:
    """Looks at all processes of a soak."""

    root: str
    units: Mapping[str, Unit]
    path: Path
    samples: list[Sample] = field(default_factory=list)
    dead: dict[int, float] = field(default_factory=dict)
    unburied: set[int] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._go_on, daemon=True)
        thread.start()
        return thread

    def _go_on(self) -> None:
        with self.path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([one.name for one in fields(Sample)])
            while not self.over.wait(EVERY):
                new = list(self.look())
                self.samples += new
                table.writerows(astuple(one) for one in new)
                file.flush()

    def look(self) -> Iterable[Sample]:
        """Look at all processes once."""
        ours: set[int] = set()
        for name, family in families(self.root).items():
            unit = self.units.get(name)
            ours |= {process.pid for process in family}
            for process in family if unit is not None else ():
                assert unit is not None
                assert unit.process is not None
                role = "server" if name == "server" else "site"
                kind = role if process.pid == unit.process.pid else f"{role}'s job"
                try:
                    with process.oneshot():
                        age, rss = time.time() - process.create_time(), process.memory_info().rss / 2**20
                        files, threads = process.num_fds(), process.num_threads()
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                yield Sample(
                    round(time.time(), 1), kind, name, process.pid, round(age, 1), round(rss, 1), files, threads
                )
        self._look_for_dead(ours)

    def _look_for_dead(self, ours: set[int]) -> None:
        now, seen = time.monotonic(), set[int]()
        for process in psutil.process_iter(["status", "ppid"]):
            if process.info["status"] == psutil.STATUS_ZOMBIE and process.info["ppid"] in ours:
                seen.add(process.pid)
                if now - self.dead.setdefault(process.pid, now) > BURIED:
                    self.unburied.add(process.pid)
        self.dead = {pid: since for pid, since in self.dead.items() if pid in seen}


def slope(samples: Iterable[Sample], value: str) -> float:
    """Return by how much a value grows per hour while processes live: a common slope, a level for each process."""
    groups: dict[int, list[tuple[float, float]]] = {}
    for one in samples:
        groups.setdefault(one.pid, []).append((one.at / 3600, float(getattr(one, value))))
    across = above = 0.0
    for points in groups.values():
        times, values = np.array(points).T
        centred = times - times.mean()
        across += float((centred * (values - values.mean())).sum())
        above += float((centred**2).sum())
    return across / above if above else 0.0


def grown_up(samples: Iterable[Sample], kind: str) -> list[Sample]:
    """Return the samples of a kind of process that has settled."""
    return [one for one in samples if one.kind == kind and one.age > WARM]


def hours(samples: Iterable[Sample]) -> float:
    """Return how long processes were looked at, together."""
    return sum(EVERY for _ in samples) / 3600
