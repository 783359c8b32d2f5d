"""Show the progress of a run: a moving bar on a terminal, lines elsewhere, and numbers in words.

Without a terminal, the reporter prints one line per round. For slow rounds and other slow work it prints a first line
after a few seconds and then one per minute. For programs it writes one JSON object per line instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from fedvisage.base.errors import printable

Say = Callable[[str], None]
"""Prints one message."""

Steps = Callable[[int, int], None]
"""Takes the completed and the total number of steps."""

OnBatch = Callable[[str, int, int], None]
"""Takes a site, and the completed and total number of batches of its round."""

Clock = Callable[[], float]

FIRST, EVERY, MOVING = 3.0, 60.0, 0.1
"""Seconds until the first line, between further lines, and between movements of a bar."""

SOON = 2.0
"""Seconds before which a rate is meaningless."""


def discard(line: str) -> None:
    """Ignore a message."""


def discard_steps(done: int, total: int) -> None:
    """Ignore steps."""


def discard_batches(site: str, done: int, of: int) -> None:
    """Ignore batches."""


class Pace:
    """Decides when the next progress message is due."""

    def __init__(self, clock: Clock, first: float, every: float) -> None:
        """Start waiting now."""
        self._clock, self._every, self._next = clock, every, clock() + first

    def due(self) -> bool:
        """Return whether a message is due; if so, start waiting for the next one."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._every
        return True

    def again(self) -> None:
        """Restart the wait, because another message was printed."""
        self._next = self._clock() + self._every


class Rate:
    """Speed of some work, and the time that the rest will take."""

    def __init__(self, clock: Clock, done: int) -> None:
        """Start now, with ``done`` steps completed already."""
        self._clock, self._began, self._first, self.last = clock, clock(), done, done

    def figures(self, done: int, of: int) -> dict[str, float]:
        """Return steps per second and seconds left; an empty mapping while these are not yet measurable."""
        seconds = self._clock() - self._began
        if done <= self._first or seconds < SOON:
            return {}
        rate = (done - self._first) / seconds
        return {"per_second": round(rate, 3), "seconds_left": round((of - done) / rate, 1)}


class Reporter:
    """Reports the progress of a run to a console; calling it prints one message."""

    def __init__(self, console: Console, quiet: bool = False, *, clock: Clock = time.monotonic) -> None:
        """Store the console; a quiet reporter prints nothing."""
        self.console, self.quiet = console, quiet
        self._clock, self._rates = clock, dict[str, Rate]()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._below: TaskID | None = None
        self._pace, self._round, self._rounds = self._new_pace(), 0, Rate(clock, 0)
        self._pace_of_parts = Pace(clock, FIRST, EVERY)
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        """Functions that receive each round's row of ``rounds.jsonl``."""

    def __call__(self, text: str) -> None:
        """Print one message."""
        self.say(text)

    @property
    def moving(self) -> bool:
        """True if the console can show moving bars."""
        return not self.quiet and self.console.is_terminal

    @contextmanager
    def course(self, title: str, done: int, total: int) -> Iterator[None]:
        """Report the rounds that run inside this context."""
        self._pace, self._round, self._rounds = self._new_pace(), done, Rate(self._clock, done)
        if not self.moving:
            yield
            return
        with self._bars() as bars:
            self._task = bars.add_task(title, total=total, completed=done, note="")
            self._below = bars.add_task("", visible=False, note="")
            yield
            self._task = self._below = None

    def ended_round(self, row: Mapping[str, Any], total: int) -> None:
        """Report the end of a round, given its row of ``rounds.jsonl``."""
        for listener in self.listeners:
            listener(row)
        self.advance(int(row["round"]), total, printable(note_of(row)))

    def advance(self, done: int, total: int, note: str) -> None:
        """Report the end of a round."""
        self._round = done
        self._rates.clear()
        figures = self._rounds.figures(done, total)
        if self._progress is not None and self._task is not None and self._below is not None:
            remaining = f"{duration_in_words(figures['seconds_left'])} left  " if figures and done < total else ""
            self._progress.update(self._task, completed=done, note=remaining + note)
            self._progress.update(self._below, visible=False)
        else:
            self.tell("round", f"round {done}/{total}  {note}", round=done, of=total, **figures)
            self._pace.again()

    def batch(self, site: str, done: int, of: int) -> None:
        """Store a site's progress within a round, and report it when a message is due; otherwise this is cheap."""
        if self.quiet:
            return
        rate = self._rates.get(site)
        if rate is None or done < rate.last:
            rate = self._rates[site] = Rate(self._clock, done)
        rate.last = done
        if not self._pace.due():
            return
        figures = rate.figures(done, of)
        if self._progress is not None and self._below is not None:
            name, note = f"site {site}", _pace_in_words(figures).removeprefix(", ")
            self._progress.update(self._below, visible=True, description=name, completed=done, total=of, note=note)
        else:
            number, position = self._round + 1, f"site {site}, batch {done} of {of}{_pace_in_words(figures)}"
            self.tell("batch", f"in round {number}: {position}", round=number, site=site, done=done, of=of, **figures)

    @contextmanager
    def counting(self, what: str) -> Iterator[Steps]:
        """Report the progress of some work inside this context."""
        pace, rates, tasks = self._new_pace(), list[Rate](), list[TaskID]()

        def steps(done: int, total: int) -> None:
            if not rates:  # start-up and an earlier attempt's steps do not count towards the speed
                rates.append(Rate(self._clock, done))
            if bars is not None and not tasks:  # the bar appears with the first step
                tasks.append(bars.add_task(what, total=total, note=""))
            if not pace.due() and (bars is None or done < total):
                return
            figures = rates[0].figures(done, total)
            rate = _pace_in_words(figures)
            if bars is not None:
                bars.update(tasks[0], completed=done, total=total, note=rate.removeprefix(", "))
            else:
                self.tell("progress", f"{what}: {done} of {total}{rate}", what=what, done=done, of=total, **figures)

        with self._bars() if self.moving else nullcontext() as bars:
            yield steps

    def say(self, text: str) -> None:
        """Print one message."""
        self.tell("said", text)

    def tell(self, event: str, text: str, **fields: object) -> None:
        """Print a message for people; ``event`` and the fields are for programs."""
        if not self.quiet:
            self.console.print(printable(text), highlight=False, markup=False, emoji=False, soft_wrap=True)

    def part(self, name: str) -> Reporter:
        """Return a reporter for one of many runs; it reports progress only, once per minute for all runs together."""
        return _Part(self, name)

    def _new_pace(self) -> Pace:
        return Pace(self._clock, 0.0, MOVING) if self.moving else Pace(self._clock, FIRST, EVERY)

    @contextmanager
    def _bars(self) -> Iterator[Progress]:
        """Yield the bars on the terminal; a bar inside another one is shown below it."""
        if self._progress is not None:
            yield self._progress
            return
        unfolded = partial(Column, no_wrap=True)  # on a narrow terminal, only the note is folded
        columns = (
            TextColumn("{task.description}", markup=False, table_column=unfolded()),
            BarColumn(20, table_column=unfolded()),
            MofNCompleteColumn(table_column=unfolded()),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column()),
        )
        try:
            with Progress(*columns, console=self.console) as self._progress:
                yield self._progress
        finally:
            self._progress = self._task = self._below = None


def reporter_on_stdout(quiet: bool = False) -> Reporter:
    """Return a reporter to standard output: bars on a terminal, lines elsewhere.

    Notebooks get lines: bars in them need a further package (ipywidgets), and ipykernel claims a terminal by setting
    ``FORCE_COLOR``.
    """
    in_notebook = Console().is_jupyter
    return Reporter(
        Console(highlight=False, force_jupyter=False, force_terminal=False if in_notebook else None), quiet=quiet
    )


class JsonReporter(Reporter):
    """Reports the progress of a run to a program: one JSON object per line, with time, event, message and fields."""

    def __init__(self, stream: IO[str], *, clock: Clock = time.monotonic) -> None:
        """Store the stream for the lines."""
        super().__init__(Console(file=stream, force_terminal=False, force_jupyter=False), clock=clock)
        self._stream = stream

    def tell(self, event: str, text: str, **fields: object) -> None:
        """Write one line."""
        from fedvisage.base.files import json_line

        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._stream.write(json_line({"time": when, "event": event, **fields, "message": text}))
        self._stream.flush()


class _Part(Reporter):
    """Reports one of many runs: only its progress, prefixed by its name, and once per minute for all runs together."""

    def __init__(self, whole: Reporter, name: str) -> None:
        self._whole, self._name = whole, name
        super().__init__(
            Console(quiet=True, force_terminal=False, force_jupyter=False), whole.quiet, clock=whole._clock
        )

    def tell(self, event: str, text: str, **fields: object) -> None:
        if event in ("batch", "progress"):
            self._whole.tell(event, f"{self._name}: {text}", part=self._name, **fields)

    def advance(self, done: int, total: int, note: str) -> None:
        self._round = done  # prints nothing, so the wait continues
        self._rates.clear()

    def _new_pace(self) -> Pace:
        return self._whole._pace_of_parts


@contextmanager
def in_steps(what: str, say: Say) -> Iterator[Steps]:
    """Report the progress of some work inside this context, to a reporter or to a function that takes lines."""
    reporter = say if isinstance(say, Reporter) else _Lines(say)
    with reporter.counting(what) as steps:
        yield steps


class _Lines(Reporter):
    """Reports in lines to a function."""

    def __init__(self, say: Say) -> None:
        super().__init__(Console(quiet=True, force_terminal=False, force_jupyter=False))
        self._say = say

    def tell(self, event: str, text: str, **fields: object) -> None:
        self._say(text)


def _pace_in_words(figures: Mapping[str, float]) -> str:
    """Return rate and time left in words, if they are known."""
    if not figures:
        return ""
    rate = figures["per_second"]
    speed = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
    return f", {speed}, {duration_in_words(figures['seconds_left'])} left"


def duration_in_words(seconds: float) -> str:
    """Return a duration in words: "9 s", "4 min", "2 h 10 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def note_of(row: Mapping[str, Any]) -> str:
    """Return the summary of a round: a short form of its row in ``rounds.jsonl``."""
    losses = " ".join(f"{name} {value:.4f}" for name, value in row["loss"].items())
    notes = [f"{row['seconds']:.1f} s", f"loss {losses}" if losses else ""]
    notes.append(f"held-out EER {row['heldout']['eer']:.2%}" if row.get("heldout") else "")
    notes.append("; ".join(f"{name}: {reason}" for name, reason in row["failed"].items()))
    lost = [
        f"{name} could not store its private state: {reason}" for name, reason in row.get("uncommitted", {}).items()
    ]
    notes.append("; ".join(lost))
    return "  ".join(note for note in notes if note)


def percent(value: float | None) -> str:
    """Return a share in per cent, or a dash for None."""
    return "   –  " if value is None else f"{100 * value:6.2f} %"


def format_count(number: int, singular: str, many: str | None = None) -> str:
    """Return a number with its noun: "1 file", "2 files", "1 person", "2 people"."""
    return f"{number:,} {singular if number == 1 else many or f'{singular}s'}"
