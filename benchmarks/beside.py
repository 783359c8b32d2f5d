"""A run of the house with a plain loop beside it, batch and batch in turn in one process: each side's time by round."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvisage.base.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run


class Beside(Reporter):
    """A quiet reporter: after every batch that a site tells of, the plain side takes one."""

    def __init__(self, plain: Iterator[None]) -> None:
        """Take the plain side, which does a batch's work for each value."""
        super().__init__(Console(), quiet=True)
        self.plain, self.laps = plain, list[tuple[float, float]]()
        self._house = self._theirs = 0.0
        self._since = time.process_time()

    def batch(self, site: str, done: int, of: int) -> None:
        """Let the other side work, and keep its time apart."""
        began = time.process_time()
        self._house += began - self._since
        next(self.plain)
        self._since = time.process_time()
        self._theirs += self._since - began

    def ended_round(self, row: Mapping[str, Any], total: int) -> None:
        """Keep what the round took; the checkpoint that follows counts for the next one."""
        now = time.process_time()
        self.laps.append((self._house + now - self._since, self._theirs))
        self._house, self._theirs, self._since = 0.0, 0.0, now


def beside(recipe: Recipe, cache: Path, plain: Iterator[None]) -> list[tuple[float, float]]:
    """Return processor seconds of the house and of the plain side by round; set-up counts for the first."""
    reporter = Beside(plain)
    with tempfile.TemporaryDirectory() as out:
        run(Request(recipe, Path(out) / "run", cache), reporter)
    return reporter.laps
