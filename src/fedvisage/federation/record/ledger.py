"""The ledger: one line per field that crossed the wire.

Its lines are never removed. A run that resumes from a checkpoint repeats the exchanges after that checkpoint. The lines
of the earlier attempt are kept and marked ``"repeated": true``, because their fields left a site. The unmarked lines
are those of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import PIECE, json_line, parse_json, pieces_of, write_pieces_atomically

LEDGER, ROUNDS = "ledger.jsonl", "rounds.jsonl"
"""File names of the ledger, with one line per field that crossed the wire, and of the rounds, with one line each."""
LONGEST_LINE = 1 << 26
"""Maximum bytes of a line; a file without line ends, such as a sparse one, would fill the memory."""
REPEATED = "repeated"
"""The key that marks a ledger line whose exchange an interruption undid."""

CHANGED = (
    "was changed since the last checkpoint, or belongs to another run: its digest is not the one in the checkpoint; "
    "restore the file that the run wrote, or start again with another --out"
)
"""The fault and the remedy of a file of an interrupted run that is not the one that its checkpoint names."""


class JsonLines:
    """A file of JSON lines that tracks its length and digest, so that a run resumes exactly at its checkpoint."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending, and create it if it does not exist."""
        self.path = path
        self._is_new = not path.exists()
        self._file = path.open("ab")
        self._digest = hashlib.sha256()

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line and pass it to the operating system, so that it survives the end of this process."""
        line = json_line(row).encode()
        self._file.write(line)
        self._file.flush()
        self._digest.update(line)

    @property
    def digest(self) -> str:
        """SHA-256 of the file; of one that existed before, from :meth:`check` on."""
        return self._digest.hexdigest()

    def flush(self) -> int:
        """Make all lines durable and return the file's length."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def check(self, length: int, digest: str | None) -> None:
        """Refuse a file that is not as it was at a checkpoint, up to its length then; an earlier version has no digest.

        The file is read once. From then on, each line that is appended updates the digest.
        """
        self._file.flush()
        size = self.path.stat().st_size
        if size < length:
            is_missing = self._is_new and not size
            if is_missing:
                self.path.unlink()
            fault = "is missing" if is_missing else "is shorter than at the last checkpoint"
            raise UserError(str(self.path), f"{fault}; restore it to resume")
        self._digest = hashlib.sha256()
        for piece in self._pieces_until(length):
            self._digest.update(piece)
        if digest is not None and self.digest != digest:
            raise UserError(str(self.path), CHANGED)

    def cut(self, length: int) -> None:
        """Remove the lines after a checkpoint."""
        self._file.flush()
        os.truncate(self.path, length)
        self._file.seek(0, os.SEEK_END)

    def mark_repeated(self, length: int) -> None:
        """Mark every line after a checkpoint as repeated: its exchange took place and is about to happen again.

        The file is replaced as a whole, and its bytes up to the checkpoint do not change. After an interruption at any
        moment, also a second or third one, this function can run again. A torn last line, from a process that ended
        while writing it, is dropped.
        """
        self._file.flush()
        if self.path.stat().st_size == length:
            return
        before = sum(piece.count(b"\n") for piece in self._pieces_until(length))
        with self.path.open("rb") as file:
            file.seek(length)
            rows = _rows_in(iter(partial(file.read, PIECE), b""), self.path, before)
            marked = "".join(json_line({**row, REPEATED: True}) for row in rows).encode()
            file.seek(length)
            after = file.read()  # only now, because no line is too long
        self._digest.update(marked)
        if marked != after:
            self._file.close()
            write_pieces_atomically(self.path, chain(self._pieces_until(length), [marked]))
            self._file = self.path.open("ab")

    def _pieces_until(self, length: int) -> Iterator[bytes]:
        """Yield the first bytes of the file, which can be larger than memory, in pieces."""
        for piece in pieces_of(self.path, most=1 << 62):
            yield piece[:length]
            length -= len(piece)
            if length <= 0:
                return

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def stream_lines(path: Path, torn: list[bytes] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a file of JSON lines of any size; a torn last line is added to ``torn``."""
    yield from _rows_in(pieces_of(path, most=1 << 62), path, torn=torn)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines of a file of JSON lines, without a torn last one."""
    return list(stream_lines(path))


def _rows_in(
    pieces: Iterable[bytes], path: Path, before: int = 0, torn: list[bytes] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows in pieces of a file; ``before`` lines precede them in the file."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for number, line in enumerate(lines, before + 1):
            try:
                if line.strip():
                    yield _parse_row(line)
            except ValueError as error:
                message = f"line {number} was changed ({str(error)[:200]}); restore the original file"
                raise UserError(str(path), message) from None
        before += len(lines)
        if len(rest) > LONGEST_LINE:
            raise UserError(
                str(path), f"line {before + 1} has more than {LONGEST_LINE:,} bytes; restore the original file"
            )
    try:
        if rest.strip():
            yield _parse_row(rest)
    except ValueError:
        if torn is not None:
            torn.append(rest)


def _parse_row(line: bytes) -> dict[str, Any]:
    row = parse_json(line.decode())
    if not isinstance(row, dict):
        raise ValueError("is not a mapping")
    return row


@dataclass
class LedgerTotals:
    """Sums over a ledger, which can be larger than memory."""

    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    """Bytes by direction."""
    repeated: dict[str, int] = field(default_factory=dict)
    """The same of lines that an interruption undid; empty without such lines."""
    privacy: dict[str, Any] = field(default_factory=dict)
    """The costs of the site that released most, by sum and tightly; empty without releases."""


def totals_of(rows: Iterable[Mapping[str, Any]]) -> LedgerTotals:
    """Add up the lines of a ledger."""
    totals, relations = LedgerTotals(), set[str]()
    for row in rows:
        totals.bytes[row["direction"]] += row["bytes"]
        if row.get(REPEATED):
            totals.repeated = totals.repeated or {"up": 0, "down": 0}
            totals.repeated[row["direction"]] += row["bytes"]
        if cost := row.get("cost"):
            relations |= {release["relation"] for release in cost["releases"]}
            if not totals.privacy or float(cost["total"]["epsilon"]) > float(totals.privacy["epsilon"]):
                totals.privacy = {**cost["total"], "site": row["site"], "noise": cost["noise"]}
    if totals.privacy:
        totals.privacy["relation"] = sorted(relations)
    return totals


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
