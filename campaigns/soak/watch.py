"""What a soak measures while it goes on: memory, open files and threads of every process, the dead that stay."""

from __future__ import annotations

import csv
import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import numpy as np
import psutil
from campaigns.soak.units import Unit, families

EVERY = 5.0
"""Seconds between two looks."""

WARM = 120.0
"""Seconds of a process' life that do not count: it opens, and NVFlare keeps a thread for 65 s for each message."""

ENOUGH = 10
"""Minutes, beyond those that fit any line, from which on the error of a line can be told."""

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
    buried: float = BURIED
    samples: list[Sample] = field(default_factory=list)
    dead: dict[int, float] = field(default_factory=dict)
    unburied: set[int] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def go_on(self) -> None:
        """Look again and again until told to stop."""
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
                if not rss:  # it is dying
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
                if now - self.dead.setdefault(process.pid, now) > self.buried:
                    self.unburied.add(process.pid)
        self.dead = {pid: since for pid, since in self.dead.items() if pid in seen}


@dataclass(frozen=True)
class Growth:
    """By how much something grows per hour, and how far off that may be (two standard errors)."""

    an_hour: float
    give_or_take: float

    def exceeds(self, bound: float) -> bool:
        """Return whether it grows by more than a bound beyond doubt."""
        return self.an_hour - self.give_or_take > bound

    def __str__(self) -> str:
        return "–" if math.isinf(self.give_or_take) else f"{self.an_hour:+.0f} ± {self.give_or_take:.0f}"


def growth(samples: Iterable[Sample], value: str) -> Growth:
    """Return by how much a value grows while processes live: a common slope, a level for each process.

    What one look finds is much what the look before found, so that errors are those of a line through minutes' means.
    """
    groups: dict[int, dict[int, list[float]]] = {}
    for one in samples:
        groups.setdefault(one.pid, {}).setdefault(int(one.age // 60), []).append(float(getattr(one, value)))
    across = above = 0.0
    lines = [np.array([(minute, np.mean(found)) for minute, found in minutes.items()]).T for minutes in groups.values()]
    centred = [(times / 60 - times.mean() / 60, values - values.mean()) for times, values in lines]
    for times, values in centred:
        across += float(times @ values)
        above += float(times @ times)
    free = sum(len(times) for times, _ in centred) - len(centred) - 1
    if not above or free < ENOUGH:
        return Growth(across / above if above else 0.0, math.inf)
    an_hour = across / above
    left = sum(float(((values - an_hour * times) ** 2).sum()) for times, values in centred)
    return Growth(an_hour, 2 * math.sqrt(left / free / above))


def grown_up(samples: Iterable[Sample], kind: str) -> list[Sample]:
    """Return the samples of a kind of process that has settled."""
    return [one for one in samples if one.kind == kind and one.age > WARM]


def hours(samples: Iterable[Sample]) -> float:
    """Return how long processes were looked at, together."""
    return sum(EVERY for _ in samples) / 3600
