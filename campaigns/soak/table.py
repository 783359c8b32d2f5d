"""What came of a soak: the table of ``docs/reliability.md``, and whatever broke a promise."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaigns.soak.mischief import KINDS, Event
from campaigns.soak.runs import Run
from campaigns.soak.units import LEFT_ALONE
from campaigns.soak.watch import Sample, grown_up, growth, hours

REPORT = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- below: written by `make soak` -->", "<!-- above: written by `make soak` -->"

ROLES = ("server", "site", "server's job", "site's job")
LIVING = ("server", "site")
"""Processes that live as long as nothing kills them."""

BOUNDS: Mapping[str, float] = {"rss_mb": 60.0, "files": 12.0, "threads": 12.0}
"""What a process that lives on may grow by in an hour: many runs follow one another in it."""

DISK = 2.0
"""Megabytes that a machine may keep of each job whose run's directory was deleted: logs, and the newest results."""


@dataclass
class Soak:
    """All that was seen."""

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
    problems: list[str] = field(default_factory=list)
    equal: int = 0
    repeated: int = 0
    left_over: int = 0
    unburied: int = 0
    orphans: int = 0

    def found(self) -> list[str]:
        """Return what broke a promise."""
        found = list(self.problems)
        down = [name for name, codes in self.codes.items() if LEFT_ALONE in codes]
        found += [f"{', '.join(down)}: ended with code {LEFT_ALONE}"] if down else []
        found += [f"{run.out.name}: {text}" for run in self.runs for text in run.failures if not text.startswith("1:")]
        found += [f"a traceback at {time.ctime(at)}" for at, text in self.lines if text.startswith("Traceback")]
        for number, what in (
            (self.left_over, "processes of jobs outlived the last run"),
            (self.unburied, "dead processes stayed"),
            (self.orphans, "processes outlived their machine"),
        ):
            found += [f"{number} {what}"] if number else []
        for role in LIVING:
            for value, bound in BOUNDS.items():
                grown = growth(grown_up(self.samples, role), value)
                found += [f"{role}: {value} grows by {grown} an hour"] if grown.exceeds(bound) else []
        found += [f"{name}: {kept:.2f} MB stay of each job" for name, kept in self._kept().items() if kept > DISK]
        return found

    def _kept(self) -> dict[str, float]:
        """Return how many megabytes more lie on each machine after each job, from the end of the first run on."""
        between = sum(run.jobs for run in self.runs[1:])
        if not between:
            return {}
        first, last = self.disk[0], self.disk[-1]
        return {name: (last[name] - first[name]) / between / 2**20 for name in first}

    def recoveries(self, kind: str) -> list[float]:
        """Return the seconds from each mistake of a kind until a round was over that began after it."""
        found = []
        for event in self.events:
            run = next((one for one in self.runs if one.began <= event.at <= one.ended), None)
            later = [at for at, _ in run.rounds if at > event.at] if run is not None else []
            if event.kind == kind and len(later) > 1:
                found.append(later[1] - event.at)
        return found

    def lines_of_table(self) -> list[str]:
        """Return the lines for the page."""
        return [*self._summary(), "", *self._of_events(), "", *self._of_processes()]

    def _summary(self) -> Iterable[str]:
        minutes = (self.ended - self.began) / 60
        rounds = sum(len({number for _, number in run.rounds}) for run in self.runs)
        done = self.equal + self.repeated
        again = sum(run.again for run in self.runs)
        typed = sum(run.commands - 1 for run in self.runs)
        kept = self._kept()
        more = f" Machines keep {max(kept.values()):.2f} MB of each job at most." if kept else ""
        disk = "a file system in memory" if self.own_disks else "RLIMIT_FSIZE"
        yield (
            f"From {minutes:.0f} minutes with seed {self.seed} on {processor()}: {self.sites} sites, "
            f"{len(self.events)} mistakes, {rounds} rounds. {done} of {len(self.runs)} runs ended with the bytes that "
            f"they had to have: {self.equal} with those of an undisturbed run, {self.repeated} with those of a run in "
            "one process in which the same sites were silent."
        )
        yield (
            f"Runs were submitted again {again} times by the command, and the command typed again {typed} times. "
            f"{self.unburied} zombies, {self.orphans + self.left_over} orphans. Full disks: {disk}.{more}"
        )

    def _of_events(self) -> Iterable[str]:
        yield "| mistake | times | seconds until a round was over that began later: median, most |"
        yield "|---|---|---|"
        for kind in KINDS:
            times = [event for event in self.events if event.kind == kind]
            seconds = self.recoveries(kind)
            said = f"{statistics.median(seconds):.0f}, {max(seconds):.0f}" if seconds else "–"
            if times:
                yield f"| {kind} | {len(times)} | {said} |"

    def _of_processes(self) -> Iterable[str]:
        part = "hour" if self.ended - self.began > 3 * 3600 else "third"
        parts = f"first and last {part}"
        yield f"| processes | MB, {parts} | open files | threads | hours | growth an hour: MB, files, threads |"
        yield "|---|---|---|---|---|---|"
        for role in ROLES:
            samples = grown_up(self.samples, role) if role in LIVING else [s for s in self.samples if s.kind == role]
            if not samples:
                continue
            figures = [self._first_and_last(samples, lambda one, v=value: float(getattr(one, v))) for value in BOUNDS]
            grown = ", ".join(str(growth(samples, value)) for value in BOUNDS) if role in LIVING else "–"
            lived = f"{hours(samples):.1f}"
            yield f"| {role} | {figures[0]} | {figures[1]} | {figures[2]} | {lived} | {grown} |"

    def _first_and_last(self, samples: Sequence[Sample], value: Callable[[Sample], float]) -> str:
        length = 3600 if self.ended - self.began > 3 * 3600 else (self.ended - self.began) / 3
        first = [value(one) for one in samples if one.at < self.began + length]
        last = [value(one) for one in samples if one.at > self.ended - length]
        return ", ".join(f"{statistics.median(part):.0f}" if part else "–" for part in (first, last))


def processor() -> str:
    """Name the processor of this machine."""
    path = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in path.read_text().splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0]}" if names else f"{os.cpu_count()} cores"


def write(lines: Iterable[str]) -> None:
    """Put the table into its place in the page."""
    text = REPORT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    REPORT.write_text(before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + after, encoding="utf-8")
