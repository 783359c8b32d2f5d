"""A run's log at a server or site: a JSON object a line, with time, run and round."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from fedvisage.errors import plain_line
from fedvisage.files import json_line, parse_json
from fedvisage.progress import Reporter

LOG = "log.jsonl"
LAST, BYTES, LETTERS = 20, 32_768, 300
"""Lines that a console shows, within so many bytes at the end of a log, and letters of a line."""


class RunLog(Reporter):
    """Writes what a person would see of a run into its log."""

    def __init__(self, directory: Path, run: str) -> None:
        """Continue the log of a run."""
        super().__init__(Console(file=io.StringIO()), quiet=True)
        self._path, self._run, self._round = directory / LOG, run, 0

    def advance(self, done: int, total: int, note: str) -> None:
        """Note that a round has ended."""
        self._round = done
        self.note("round", note, of=total)

    def say(self, text: str) -> None:
        """Note a sentence."""
        self.note("said", text)

    def note(self, event: str, message: str, **values: str | int) -> None:
        """Write a line."""
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "run": self._run, "round": self._round, "event": event, **values, "message": message}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json_line(line))


def last_lines(directory: Path) -> list[dict[str, Any]]:
    """Return when and what was noted last in the log of a run."""
    path = directory / LOG
    if not path.exists():
        return []
    with path.open("rb") as file:
        beyond = file.seek(0, io.SEEK_END) > BYTES
        file.seek(-BYTES if beyond else 0, io.SEEK_END if beyond else io.SEEK_SET)
        lines = file.read().decode(errors="replace").split("\n")[beyond:-1]  # what is cut off at either end
    found = [parse_json(line) for line in lines[-LAST:]]
    return [{"time": str(one["time"]), "message": plain_line(str(one["message"]), LETTERS)} for one in found]
