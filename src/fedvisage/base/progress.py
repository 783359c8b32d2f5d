"""What a person sees while a run works: a moving bar on a terminal, else lines; and numbers in words.

Without a terminal there is a line a round, and where a round or anything else takes long, the first line after seconds
and then one a minute. For programs there is a JSON object a line instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

Say = Callable[[str], None]
"""Tells a person one thing."""

Steps = Callable[[int, int], None]
"""Takes how much of something is done, and how much there is of it."""

OnBatch = Callable[[str, int, int], None]
"""Takes a site, how many batches of its round are done, and how many there are."""

Clock = Callable[[], float]

FIRST, EVERY, MOVING = 3.0, 60.0, 0.1
"""Seconds until the first line and from one to the next, and from one movement of a bar to the next."""

SOON = 2.0
"""Seconds before which a rate means nothing."""


def unheard(line: str) -> None:
    """Take what is said where nobody listens."""


def unwatched(done: int, total: int) -> None:
    """Take steps where nobody looks."""


def unwatched_batch(site: str, done: int, of: int) -> None:
    """Take batches where nobody looks."""


class Pace:
    """Says when it is time to tell a person again how far something is."""

    def __init__(self, clock: Clock, first: float, every: float) -> None:
        """Begin now."""
        self._clock, self._every, self._next = clock, every, clock() + first

    def due(self) -> bool:
        """Say whether it is time, and if so begin to wait again."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._every
        return True

    def again(self) -> None:
        """Begin to wait again, because something else was told."""
        self._next = self._clock() + self._every


class Rate:
    """How fast something goes, and how long the rest will take."""

    def __init__(self, clock: Clock, done: int) -> None:
        """Begin now, with so much done already."""
        self._clock, self._began, self._first, self.last = clock, clock(), done, done

    def figures(self, done: int, of: int) -> dict[str, float]:
        """Return how much is done a second, and how many seconds are left; nothing before there is anything to say."""
        seconds = self._clock() - self._began
        if done <= self._first or seconds < SOON:
            return {}
        rate = (done - self._first) / seconds
        return {"per_second": round(rate, 3), "seconds_left": round((of - done) / rate, 1)}


class Reporter:
    """Reports the course of a run to a console; called, it says one thing."""

    def __init__(self, console: Console, quiet: bool = False, *, clock: Clock = time.monotonic) -> None:
        """Take the console; a quiet reporter says nothing."""
        self.console, self.quiet = console, quiet
        self._clock, self._rates = clock, dict[str, Rate]()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._below: TaskID | None = None
        self._pace, self._round, self._rounds = self._new_pace(), 0, Rate(clock, 0)
        self._pace_of_parts = Pace(clock, FIRST, EVERY)
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        """Who hears the line that each round leaves in ``rounds.jsonl``."""

    def __call__(self, text: str) -> None:
        """Say one thing."""
        self.say(text)

    @property
    def moving(self) -> bool:
        """Whether there is a terminal on which something can move."""
        return not self.quiet and (self.console.is_terminal or self.console.is_jupyter)

    @contextmanager
    def course(self, title: str, done: int, total: int) -> Iterator[None]:
        """Report the rounds that are taken inside this context."""
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
        """Say that a round has ended, whose line in ``rounds.jsonl`` this is."""
        for listener in self.listeners:
            listener(row)
        self.advance(int(row["round"]), total, note_of(row))

    def advance(self, done: int, total: int, note: str) -> None:
        """Say that a round has ended."""
        self._round = done
        self._rates.clear()
        figures = self._rounds.figures(done, total)
        if self._progress is not None and self._task is not None and self._below is not None:
            left = f"{lasting(figures['seconds_left'])} left  " if figures and done < total else ""
            self._progress.update(self._task, completed=done, note=left + note)
            self._progress.update(self._below, visible=False)
        else:
            self.tell("round", f"round {done}/{total}  {note}", round=done, of=total, **figures)
            self._pace.again()

    def batch(self, site: str, done: int, of: int) -> None:
        """Take how far a site is within a round, and tell it when it is time; it costs next to nothing otherwise."""
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
            now, said = self._round + 1, f"site {site}, batch {done} of {of}{_pace_in_words(figures)}"
            self.tell("batch", f"in round {now}: {said}", round=now, site=site, done=done, of=of, **figures)

    @contextmanager
    def counting(self, what: str) -> Iterator[Steps]:
        """Report how much of something is done inside this context."""
        if self.moving:
            with self._bars() as bars:
                yield _moving(bars, what, Pace(self._clock, 0.0, MOVING), self._clock)
            return
        pace, rates = self._new_pace(), list[Rate]()

        def steps(done: int, total: int) -> None:
            if not rates:  # starting up, and what an earlier attempt did, are no measure of speed
                rates.append(Rate(self._clock, done))
            if pace.due():
                figures = rates[0].figures(done, total)
                words = f"{what}: {done} of {total}{_pace_in_words(figures)}"
                self.tell("progress", words, what=what, done=done, of=total, **figures)

        yield steps

    def say(self, text: str) -> None:
        """Say one thing."""
        self.tell("said", text)

    def tell(self, event: str, text: str, **fields: object) -> None:
        """Tell a person, in words; ``event`` and the fields are for programs."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def part(self, name: str) -> Reporter:
        """Return a reporter of one of many runs: what it does is told by whoever starts it, once a minute it lives."""
        return _Part(self, name)

    def _new_pace(self) -> Pace:
        return Pace(self._clock, 0.0, MOVING) if self.moving else Pace(self._clock, FIRST, EVERY)

    @contextmanager
    def _bars(self) -> Iterator[Progress]:
        """Return what moves on the terminal; what is inside another one stands below it."""
        if self._progress is not None:
            yield self._progress
            return
        whole = partial(Column, no_wrap=True)  # where it is narrow the note is folded, and nothing else
        columns = (
            TextColumn("{task.description}", table_column=whole()),
            BarColumn(20, table_column=whole()),
            MofNCompleteColumn(table_column=whole()),
            TextColumn("{task.fields[note]}", table_column=Column()),
        )
        try:
            with Progress(*columns, console=self.console) as self._progress:
                yield self._progress
        finally:
            self._progress = self._task = self._below = None


def _moving(bars: Progress, what: str, pace: Pace, clock: Clock) -> Steps:
    """Return steps that move a bar, which appears with the first of them."""
    tasks, rates = list[TaskID](), list[Rate]()

    def steps(done: int, total: int) -> None:
        if not tasks:
            tasks.append(bars.add_task(what, total=total, note=""))
            rates.append(Rate(clock, done))
        if pace.due() or done == total:
            note = _pace_in_words(rates[0].figures(done, total)).removeprefix(", ")
            bars.update(tasks[0], completed=done, total=total, note=note)

    return steps


class JsonReporter(Reporter):
    """Reports the course of a run to a program: a JSON object a line, with time, event, message and fields."""

    def __init__(self, stream: IO[str], *, clock: Clock = time.monotonic) -> None:
        """Take where the lines go."""
        super().__init__(Console(file=stream, force_terminal=False, force_jupyter=False), clock=clock)
        self._stream = stream

    def tell(self, event: str, text: str, **fields: object) -> None:
        """Write a line."""
        from fedvisage.base.files import json_line

        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._stream.write(json_line({"time": when, "event": event, **fields, "message": text}))
        self._stream.flush()


class _Part(Reporter):
    """Reports one of many runs: only signs of life, with its name, and for all of them together once a minute."""

    def __init__(self, whole: Reporter, name: str) -> None:
        self._whole, self._name = whole, name
        super().__init__(
            Console(quiet=True, force_terminal=False, force_jupyter=False), whole.quiet, clock=whole._clock
        )

    def tell(self, event: str, text: str, **fields: object) -> None:
        if event in ("batch", "progress"):
            self._whole.tell(event, f"{self._name}: {text}", part=self._name, **fields)

    def advance(self, done: int, total: int, note: str) -> None:
        self._round = done  # and nothing is told, so the wait goes on
        self._rates.clear()

    def _new_pace(self) -> Pace:
        return self._whole._pace_of_parts


@contextmanager
def in_steps(what: str, say: Say) -> Iterator[Steps]:
    """Report how much of something is done inside this context, to a reporter or to whoever takes lines."""
    reporter = say if isinstance(say, Reporter) else _Lines(say)
    with reporter.counting(what) as steps:
        yield steps


class _Lines(Reporter):
    """Reports in lines to whoever takes them."""

    def __init__(self, say: Say) -> None:
        super().__init__(Console(quiet=True, force_terminal=False, force_jupyter=False))
        self._say = say

    def tell(self, event: str, text: str, **fields: object) -> None:
        self._say(text)


def _pace_in_words(figures: Mapping[str, float]) -> str:
    """Return rate and time left, if they are known."""
    if not figures:
        return ""
    rate = figures["per_second"]
    speed = f"{rate:.1f} a second" if rate >= 1 else f"{60 * rate:.1f} a minute"
    return f", {speed}, {lasting(figures['seconds_left'])} left"


def lasting(seconds: float) -> str:
    """Return a length of time in the words of a person: "9 s", "4 min", "2 h 10 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def note_of(row: Mapping[str, Any]) -> str:
    """Return what is said of a round: its line in ``rounds.jsonl`` in short."""
    losses = " ".join(f"{name} {value:.4f}" for name, value in row["loss"].items())
    notes = [f"{row['seconds']:.1f} s", f"loss {losses}" if losses else ""]
    notes.append(f"held-out EER {row['heldout']['eer']:.2%}" if row.get("heldout") else "")
    notes.append("; ".join(f"{name}: {reason}" for name, reason in row["failed"].items()))
    return "  ".join(note for note in notes if note)


def percent(value: float | None) -> str:
    """Return a share in per cent, or a dash where there is none."""
    return "   –  " if value is None else f"{100 * value:6.2f} %"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its word: "1 file", "2 files", "1 person", "2 people"."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
