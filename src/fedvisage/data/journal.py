"""What an unfinished set has done so far: a line for each piece of work, with the place in the set's files behind it.

A line is written after its images are safe on the disk. Whoever goes on after a kill or a power failure finds lines
that are true, perhaps not the last ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedvisage.files import json_line, parse_json

JOURNAL = "journal.jsonl"
EVERY = 1.0
"""Seconds between two times that files are made durable."""

Record = dict[str, Any]
_COUNT, _LENGTH = "count", "rows"


class Journal:
    """The lines of an unfinished set; those that are not safe yet wait in memory."""

    def __init__(self, path: Path, every: float = EVERY) -> None:
        """Read what an earlier attempt wrote, up to a line that is torn or damaged."""
        self._path, self._every, self._last = path, every, time.monotonic()
        self._waiting: list[Record] = []
        self._lines: list[Record] = []
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            try:
                self._lines.append(parse_json(line))
            except ValueError:
                break

    def keep_reached(self, images: int, length: int) -> tuple[int, int]:
        """Forget lines beyond what the files hold; return how many images and bytes of rows the others reach."""
        while self._lines and (self._lines[-1][_COUNT] > images or self._lines[-1][_LENGTH] > length):
            self._lines.pop()
        text = "".join(json_line(line) for line in self._lines)
        self._path.write_text(text, encoding="utf-8")
        return (self._lines[-1][_COUNT], self._lines[-1][_LENGTH]) if self._lines else (0, 0)

    @property
    def records(self) -> list[Record]:
        """What was done before, in order."""
        return [line["done"] for line in self._lines]

    def note(self, record: Mapping[str, Any], images: int, length: int, make_durable: Callable[[], None]) -> None:
        """Note a piece of work and where the files end behind it."""
        self._waiting.append({_COUNT: images, _LENGTH: length, "done": dict(record)})
        if time.monotonic() - self._last >= self._every:
            self.settle(make_durable)

    def settle(self, make_durable: Callable[[], None]) -> None:
        """Write the lines that wait, after the files that they speak of."""
        make_durable()
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json_line(line) for line in self._waiting)
            file.flush()
            os.fsync(file.fileno())
        self._lines += self._waiting
        self._waiting, self._last = [], time.monotonic()

    def remove(self) -> None:
        """Remove the file: the set is whole."""
        self._path.unlink(missing_ok=True)
