"""What a person sees while a run works: a moving bar on a terminal, else a plain line a round; and numbers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Say = Callable[[str], None]
"""Tells a person one thing."""


def unheard(line: str) -> None:
    """Take what is said where nobody listens."""


class Reporter:
    """Reports the course of a run to a console."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        """Take the console; a quiet reporter says nothing."""
        self.console, self.quiet = console, quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @contextmanager
    def course(self, title: str, done: int, total: int) -> Iterator[None]:
        """Report the rounds that are taken inside this context."""
        if self.quiet or not (self.console.is_terminal or self.console.is_jupyter):
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                   TextColumn("{task.fields[note]}"))  # fmt: skip
        with Progress(*columns, console=self.console) as self._progress:
            self._task = self._progress.add_task(title, total=total, completed=done, note="")
            yield
        self._progress = None

    def advance(self, done: int, total: int, note: str) -> None:
        """Say that a round has ended."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)
        else:
            self.say(f"round {done}/{total}  {note}")

    def say(self, text: str) -> None:
        """Say one thing."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


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
