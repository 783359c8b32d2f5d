"""Measurements of a soak: memory, open files and threads of every process, and zombies."""

from __future__ import annotations

import csv
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import numpy as np
import psutil
from campaigns.soak.machines import Machine, find_processes

INTERVAL = 5.0
"""Seconds between two samples."""

WARM_UP = 120.0
"""Seconds of a process's life that do not count: it starts, and NVFlare keeps a thread for 65 s per message."""

LEAST_FREEDOM = 10
"""Minutes, beyond the parameters of the line, that an estimate of the line's error needs."""

ZOMBIE_SECONDS = 20.0
"""Seconds within which a parent must reap a dead child."""


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
class Sampler:
    """Samples all processes of a soak."""

    root: str
    machines: Mapping[str, Machine]
    path: Path
    zombie_seconds: float = ZOMBIE_SECONDS
    samples: list[Sample] = field(default_factory=list)
    zombies: dict[int, float] = field(default_factory=dict)
    """Present zombies with the time of their first sample."""
    unreaped: set[int] = field(default_factory=set)
    """Zombies that stayed longer than allowed."""
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Sample until ``stop`` is set, and write the samples into a file."""
        with self.path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([each.name for each in fields(Sample)])
            while not self.stop.wait(INTERVAL):
                samples = list(self.sample_processes())
                self.samples += samples
                table.writerows(astuple(sample) for sample in samples)
                file.flush()

    def sample_processes(self) -> Iterator[Sample]:
        """Sample all processes once."""
        pids: set[int] = set()
        for name, processes in find_processes(self.root).items():
            machine = self.machines.get(name)
            pids |= {process.pid for process in processes}
            if machine is None:  # the operator
                continue
            assert machine.process is not None
            role = "server" if name == "server" else "site"
            for process in processes:
                kind = role if process.pid == machine.process.pid else f"{role}'s job"
                try:
                    with process.oneshot():
                        now = time.time()
                        age, rss = now - process.create_time(), process.memory_info().rss / 2**20
                        files, threads = process.num_fds(), process.num_threads()
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                if rss:  # an ending process has none
                    yield Sample(round(now, 1), kind, name, process.pid, round(age, 1), round(rss, 1), files, threads)
        self._find_zombies(pids)

    def _find_zombies(self, parents: set[int]) -> None:
        now, present = time.monotonic(), set[int]()
        for process in psutil.process_iter(["status", "ppid"]):
            if process.info["status"] == psutil.STATUS_ZOMBIE and process.info["ppid"] in parents:
                present.add(process.pid)
                if now - self.zombies.setdefault(process.pid, now) > self.zombie_seconds:
                    self.unreaped.add(process.pid)
        self.zombies = {pid: since for pid, since in self.zombies.items() if pid in present}


@dataclass(frozen=True)
class Growth:
    """Growth per hour, with its error (two standard errors)."""

    per_hour: float
    error: float

    def exceeds(self, bound: float) -> bool:
        """Return whether the growth exceeds a bound by more than its error."""
        return self.per_hour - self.error > bound

    def __str__(self) -> str:
        return "–" if math.isinf(self.error) else f"{self.per_hour:+.0f} ± {self.error:.0f}"


def growth(samples: Iterable[Sample], value: str) -> Growth:
    """Return the growth of a value during the life of processes: a common slope, with a level per process.

    Consecutive samples are correlated, so the line is fitted to the means of minutes.
    """
    groups: dict[int, dict[int, list[float]]] = {}
    for sample in samples:
        groups.setdefault(sample.pid, {}).setdefault(int(sample.age // 60), []).append(float(getattr(sample, value)))
    lines = [
        np.array([(minute, np.mean(values)) for minute, values in minutes.items()]).T for minutes in groups.values()
    ]
    centred = [(times / 60 - times.mean() / 60, values - values.mean()) for times, values in lines]
    covariance = sum(float(times @ values) for times, values in centred)
    variance = sum(float(times @ times) for times, _ in centred)
    freedom = sum(len(times) for times, _ in centred) - len(centred) - 1
    per_hour = covariance / variance if variance else 0.0
    if not variance or freedom < LEAST_FREEDOM:
        return Growth(per_hour, math.inf)
    residual = sum(float(((values - per_hour * times) ** 2).sum()) for times, values in centred)
    return Growth(per_hour, 2 * math.sqrt(residual / freedom / variance))


def settled_samples(samples: Iterable[Sample], kind: str) -> list[Sample]:
    """Return the samples of a kind of process after its warm-up."""
    return [sample for sample in samples if sample.kind == kind and sample.age > WARM_UP]


def hours(samples: Iterable[Sample]) -> float:
    """Return the hours that all sampled processes together were observed."""
    return sum(INTERVAL for _ in samples) / 3600
