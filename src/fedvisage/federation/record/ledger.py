"""The ledger: one line per field that crossed the wire.

Its lines are never removed. A run that resumes from a checkpoint repeats the exchanges after that checkpoint. The lines
of the earlier attempt are kept and marked ``"repeated": true``, because their fields left a site. The unmarked lines
are those of an uninterrupted run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_line, parse_json, read_plain, read_text, write_atomically

LEDGER, ROUNDS = "ledger.jsonl", "rounds.jsonl"
"""File names of the ledger, with one line per field that crossed the wire, and of the rounds, with one line each."""
REPEATED = "repeated"
"""The key that marks a ledger line whose exchange an interruption undid."""


class JsonLines:
    """A file of JSON lines that tracks its length, so that a resumed run continues exactly at its checkpoint."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending, and create it if it does not exist."""
        self.path = path
        self._file = path.open("ab")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line and pass it to the operating system, so that it survives the end of this process."""
        self._file.write(json_line(row).encode())
        self._file.flush()

    def flush(self) -> int:
        """Make all lines durable and return the file's length."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def cut(self, length: int) -> None:
        """Remove the lines after a checkpoint."""
        self._file.flush()
        self._check_length(self._file.seek(0, os.SEEK_END), length)
        os.truncate(self.path, length)
        self._file.seek(0, os.SEEK_END)

    def mark_repeated(self, length: int) -> None:
        """Mark every line after a checkpoint as repeated: its exchange took place and is about to happen again.

        The file is replaced as a whole, and its bytes up to the checkpoint do not change. After an interruption at any
        moment, also a second or third one, this function can run again. A torn last line, from a process that ended
        while writing it, is dropped.
        """
        self._file.flush()
        data = read_plain(self.path)
        self._check_length(len(data), length)
        rows, _ = _rows_of(data[length:].decode(errors="surrogateescape"), self.path, data.count(b"\n", 0, length))
        marked = data[:length] + "".join(json_line({**row, REPEATED: True}) for row in rows).encode()
        if marked != data:
            self._file.close()
            write_atomically(self.path, marked)
            self._file = self.path.open("ab")

    def _check_length(self, actual: int, expected: int) -> None:
        if actual < expected:
            raise UserError(str(self.path), "is shorter than at the last checkpoint; restore it to resume")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines of a file of JSON lines, without a torn last one."""
    return lines_and_rest(path)[0]


def lines_and_rest(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return all complete lines of a file of JSON lines, and the text of a torn last one."""
    return _rows_of(read_text(path), path)


def _rows_of(text: str, path: Path, before: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a text and its torn last line; ``before`` lines precede the text in the file."""
    lines = text.split("\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("is not a mapping")
        except ValueError as error:
            if number == len(lines):  # text after the last end of line: a torn line
                return rows, line
            message = f"line {before + number} was changed ({str(error)[:200]}); restore the original file"
            raise UserError(str(path), message) from None
        rows.append(row)
    return rows, ""


def privacy_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the costs of the site that released most, by sum and tightly; empty without releases."""
    costs = [(row["site"], row["cost"]) for row in rows if row.get("cost")]
    if not costs:
        return {}
    site, most = max(costs, key=lambda site_cost: float(site_cost[1]["total"]["epsilon"]))
    relations = {release["relation"] for _, cost in costs for release in cost["releases"]}
    return {**most["total"], "site": site, "relation": sorted(relations), "noise": most["noise"]}


@dataclass(frozen=True)
class LedgerEntry:
    """One field of one message in the ledger."""

    round: int
    site: str
    direction: str
    call: str
    field: str
    kind: str
    bytes: int
    digest: str
    guarantee: str = ""
    cost: Mapping[str, Any] | None = None
    """For a release under differential privacy: its cost, and the site's total so far."""

    def row(self) -> dict[str, Any]:
        """Return the line as plain values, without an absent cost."""
        return {name: value for name, value in asdict(self).items() if name != "cost" or value is not None}
