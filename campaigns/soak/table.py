"""The result of a soak: the tables of ``docs/results/reliability.md``, and the problems that make the soak fail."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.soak.faults import KINDS, Event
from campaigns.soak.machines import NO_RESTART
from campaigns.soak.runs import Run
from campaigns.soak.sampling import Sample, growth, hours, settled_samples

REPORT = Path(__file__).parents[2] / "docs" / "results" / "reliability.md"
BEGIN, END = "<!-- below: written by `make soak` -->", "<!-- above: written by `make soak` -->"

ROLES = ("server", "site", "server's job", "site's job")
LONG_LIVED = ("server", "site")
"""Processes that live until a fault ends them."""

BOUNDS: Mapping[str, float] = {"rss_mb": 60.0, "files": 12.0, "threads": 12.0}
"""Greatest growth per hour of a long-lived process, in which many runs follow one another."""

DISK = 2.0
"""Megabytes that a machine may keep per job after the run's directory is deleted: logs, and the newest results."""


@dataclass
class Result:
    """All observations of a soak."""

    minutes: float
    seed: int
    sites: int
    rounds: int
    own_disks: bool = False
    began: float = 0.0
    ended: float = 0.0
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    disk: list[dict[str, int]] = field(default_factory=list)
    lines: list[tuple[float, str]] = field(default_factory=list)
    codes: dict[str, list[int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    equal: int = 0
    repeated: int = 0
    remaining_jobs: int = 0
    zombies: int = 0
    orphans: int = 0

    def problems(self) -> list[str]:
        """Return one line per problem that makes the soak fail."""
        problems = list(self.errors)
        if down := [name for name, codes in self.codes.items() if NO_RESTART in codes]:
            problems.append(f"{', '.join(down)}: ended with code {NO_RESTART}")
        for run in self.runs:
            problems += [f"{run.out.name}: {text}" for text in run.failures if not text.startswith("1:")]
        problems += [f"a traceback at {time.ctime(at)}" for at, text in self.lines if text.startswith("Traceback")]
        for number, fault in (
            (self.remaining_jobs, "processes of jobs outlived the last run"),
            (self.zombies, "dead processes stayed"),
            (self.orphans, "processes outlived their machine"),
        ):
            problems += [f"{number} {fault}"] if number else []
        for role in LONG_LIVED:
            for value, bound in BOUNDS.items():
                slope = growth(settled_samples(self.samples, role), value)
                problems += [f"{role}: {value} grows by {slope} per hour"] if slope.exceeds(bound) else []
        for name, megabytes in self._kept_per_job().items():
            problems += [f"{name}: {megabytes:.2f} MB stay per job"] if megabytes > DISK else []
        return problems

    def _kept_per_job(self) -> dict[str, float]:
        """Return the megabytes that each machine keeps per job, counted from the end of the first run."""
        jobs = sum(run.jobs for run in self.runs[1:])
        if not jobs:
            return {}
        first, last = self.disk[0], self.disk[-1]
        return {name: (last[name] - first[name]) / jobs / 2**20 for name in first}

    def recoveries(self, kind: str) -> list[float]:
        """Return the seconds from each fault of a kind until the end of the first round that began after it."""
        seconds = []
        for event in self.events:
            run = next((run for run in self.runs if run.began <= event.at <= run.ended), None)
            later = [at for at, _ in run.rounds if at > event.at] if run is not None else []
            if event.kind == kind and len(later) > 1:
                seconds.append(later[1] - event.at)
        return seconds

    def table(self) -> list[str]:
        """Return the lines for the page."""
        return [*self._summary(), "", *self._fault_rows(), "", *self._process_rows()]

    def _summary(self) -> Iterable[str]:
        minutes = (self.ended - self.began) / 60
        rounds = sum(len({number for _, number in run.rounds}) for run in self.runs)
        by_command = sum(run.resubmissions for run in self.runs)
        by_operator = sum(run.commands - 1 for run in self.runs)
        kept = self._kept_per_job()
        yield (
            f"From {minutes:.0f} minutes with seed {self.seed} on {processor()}: {self.sites} sites, "
            f"{len(self.events)} faults, {rounds} rounds. {self.equal + self.repeated} of {len(self.runs)} runs ended "
            f"with the expected bytes: {self.equal} with those of an undisturbed run, {self.repeated} with those of a "
            "run in one process in which the same sites were silent."
        )
        yield (
            f"The command submitted runs again {by_command} times, and the operator called it again {by_operator} "
            f"times. {self.zombies} zombies, {self.orphans + self.remaining_jobs} orphans. "
            f"Full disks: {'a file system in memory' if self.own_disks else 'RLIMIT_FSIZE'}."
            + (f" Machines keep {max(kept.values()):.2f} MB per job at most." if kept else "")
        )

    def _fault_rows(self) -> Iterable[str]:
        yield "| fault | times | seconds until the end of the first round that began later: median, maximum |"
        yield "|---|---|---|"
        for kind in KINDS:
            times = sum(event.kind == kind for event in self.events)
            seconds = self.recoveries(kind)
            recovery = f"{statistics.median(seconds):.0f}, {max(seconds):.0f}" if seconds else "–"
            if times:
                yield f"| {kind} | {times} | {recovery} |"

    def _process_rows(self) -> Iterable[str]:
        part = "hour" if self.ended - self.began > 3 * 3600 else "third"
        yield (
            f"| processes | MB, first and last {part} | open files | threads | hours "
            "| growth per hour: MB, files, threads |"
        )
        yield "|---|---|---|---|---|---|"
        for role in ROLES:
            is_long_lived = role in LONG_LIVED
            samples = [sample for sample in self.samples if sample.kind == role]
            samples = settled_samples(samples, role) if is_long_lived else samples
            if samples:
                figures = " | ".join(self._first_and_last(samples, value) for value in BOUNDS)
                slopes = ", ".join(str(growth(samples, value)) for value in BOUNDS) if is_long_lived else "–"
                yield f"| {role} | {figures} | {hours(samples):.1f} | {slopes} |"

    def _first_and_last(self, samples: Sequence[Sample], value: str) -> str:
        length = 3600 if self.ended - self.began > 3 * 3600 else (self.ended - self.began) / 3
        first = [float(getattr(sample, value)) for sample in samples if sample.at < self.began + length]
        last = [float(getattr(sample, value)) for sample in samples if sample.at > self.ended - length]
        return ", ".join(f"{statistics.median(part):.0f}" if part else "–" for part in (first, last))


def processor() -> str:
    """Return the name of this machine's processor and its number of cores."""
    path = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0]}" if names else f"{os.cpu_count()} cores"


def write(lines: Iterable[str]) -> None:
    """Replace the tables in the page."""
    text = REPORT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    REPORT.write_text(before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + after, encoding="utf-8")
