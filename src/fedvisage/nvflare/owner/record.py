"""A site's own record of runs: accepted and refused runs, approvals, and every field that left.

Each line contains the digest of the line before it. A file beside the lines, the head, has the number, length and
digest of the last one, signed with the site's key. So editing, removing or reordering lines requires that key. The
site's own administrator has it, and can rewrite or delete the whole record; the server's ledger and the operators'
signatures in the record are evidence against that.

A reply leaves the site only after its line and the head were written. A process that is killed in between leaves one
line after the head, whose reply never left; the next line replaces it.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256

from fedvisage.base.errors import UserError
from fedvisage.base.files import (
    disk_full_is_failure,
    json_key,
    json_line,
    lock_directory,
    parse_json,
    pieces_of,
    read_json,
    write_json,
)
from fedvisage.federation.record.ledger import LONGEST_LINE
from fedvisage.nvflare.certificates import PADDING, credentials_in, signing_key

FOLDER, LINES, HEAD = ".record", "record.jsonl", "head.json"
"""The folder beside the private state of the runs, whose names begin with a letter or digit, and its files."""

CONTEXT = b"\0fedvisage record\0"
NOTHING = "0" * 64
"""The digest before the first line."""

PATIENCE = 60.0
"""Seconds to wait for another process of this site that writes a line."""

WEEK = timedelta(days=7)
RESTORE = "restore the record, or move its directory away to begin a new one"

Row = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """The end of a record: number of lines, bytes, and digest of the last line."""

    lines: int = 0
    bytes: int = 0
    digest: str = NOTHING


class SiteRecord:
    """The record of a site, which processes of several runs share."""

    def __init__(self, kit: Path, state: Path) -> None:
        """Take the site's kit, whose key signs the record, and the directory of its private state."""
        self._credentials = credentials_in(kit, at_server=False)
        self.directory = state / FOLDER

    @property
    def path(self) -> Path:
        """The file of the lines."""
        return self.directory / LINES

    def append(self, event: str, check: Callable[[list[Row]], None] | None = None, **values: Any) -> None:
        """Add a line, and sign the new end of the record, durably, unless ``check`` of the lines before raises."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_directory(self.directory, PATIENCE), disk_full_is_failure(self.path):
            head = self._head()
            if check is not None:
                check(list(self._rows(head)))
            elif head.bytes != (self.path.stat().st_size if self.path.exists() else 0):
                list(self._rows(head))  # refuses a cut record, and more than one line after the head
            time = datetime.now(UTC).isoformat(timespec="seconds")
            row = {"number": head.lines + 1, "time": time, "event": event, **values, "previous": head.digest}
            line = json_line(row).encode()
            with self.path.open("ab") as file:
                os.truncate(self.path, head.bytes)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._sign(Head(head.lines + 1, head.bytes + len(line), hashlib.sha256(line).hexdigest()))

    def read(self) -> list[Row]:
        """Return all lines; refuse a record that was cut or edited."""
        if not self.directory.exists():
            return []
        with lock_directory(self.directory, PATIENCE):
            return list(self._rows(self._head()))

    def rows_after(self, inode: int, start: int) -> Iterator[tuple[int, int, Row]]:
        """Yield the lines from a byte of a file up to the signed end, each with the file's inode and the byte after it.

        After the record was moved away, the new one is read from its start. The chain is not checked.
        """
        end = self._head().bytes
        if not end or not self.path.exists():
            return
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno()).st_ino
            start = start if now == inode else 0
            file.seek(start)
            while start < end and (line := file.readline()):
                start += len(line)
                yield now, start, parse_json(line)

    def _rows(self, head: Head) -> Iterator[Row]:
        """Yield the lines up to the head, and check that they form its chain."""
        if not self.path.exists():
            if head.lines:
                raise UserError(str(self.path), f"is missing, and its head names {head.lines} lines; {RESTORE}")
            return
        digest, number, size, rest = NOTHING, 0, 0, b""
        for piece in pieces_of(self.path, most=1 << 62):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                raise UserError(str(self.path), f"has a line of more than {LONGEST_LINE:,} bytes; {RESTORE}")
            for line in (each + b"\n" for each in lines):
                number, size = number + 1, size + len(line)
                if number > head.lines + 1:
                    raise UserError(str(self.path), f"has lines after number {head.lines}, its signed end; {RESTORE}")
                if number > head.lines:
                    continue  # the line of a reply that never left
                try:
                    row = parse_json(line.decode())
                    is_intact = row["number"] == number and row["previous"] == digest
                except (ValueError, KeyError, TypeError):
                    is_intact = False
                digest = hashlib.sha256(line).hexdigest()
                is_end = number == head.lines
                if not is_intact or (is_end and (size, digest) != (head.bytes, head.digest)):
                    raise UserError(str(self.path), f"was edited at line {number} or the one before; {RESTORE}")
                yield row
        if number < head.lines:
            raise UserError(str(self.path), f"was cut after line {number} of {head.lines}; {RESTORE}")

    def _head(self) -> Head:
        """Read the end of the record, and check its signature with the key of this kit."""
        path = self.directory / HEAD
        if not path.exists():
            return Head()
        content = read_json(path, RESTORE)
        try:
            head = Head(int(content["lines"]), int(content["bytes"]), str(content["digest"]))
            signature = bytes.fromhex(content["signature"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(str(path), f"is damaged; {RESTORE}") from error
        try:
            key = signing_key(self._credentials)
            key.public_key().verify(signature, CONTEXT + json_key(asdict(head)).encode(), PADDING, SHA256())
        except InvalidSignature as error:
            raise UserError(str(path), f"is not signed with the key of this kit; {RESTORE}") from error
        return head

    def _sign(self, head: Head) -> None:
        """Write the end of the record with a signature, which a renewed certificate still verifies."""
        statement = CONTEXT + json_key(asdict(head)).encode()
        signature = signing_key(self._credentials).sign(statement, PADDING, SHA256())
        write_json(self.directory / HEAD, asdict(head) | {"signature": signature.hex()})


def other_runs(rows: Iterable[Row], run: str, recipe: Mapping[str, Any], now: datetime | None = None) -> int:
    """Count the other runs that the site accepted in the last seven days; a run with another recipe is another run."""
    since = ((now or datetime.now(UTC)) - WEEK).isoformat(timespec="seconds")
    recent = (row for row in rows if row["event"] == "accepted" and row["time"] >= since)
    return len({json_key([row["run"], row["recipe"]]) for row in recent} - {json_key([run, recipe])})


def compare_with_ledger(rows: Iterable[Row], ledger: Iterable[Mapping[str, Any]], site: str) -> Iterator[str]:
    """Yield each difference between the fields that left a site in a run, and the server's ledger of that run.

    The ledger lacks replies that came too late, or that the server refused.
    """
    own, listed = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for row in rows:
        for each in row["fields"] if row["event"] == "sent" else ():
            own[row["round"], row["call"], each["field"], each["bytes"], each["digest"]] += 1
    for entry in ledger:
        if entry["direction"] == "up" and entry["site"] == site:
            listed[entry["round"], entry["call"], entry["field"], entry["bytes"], entry["digest"]] += 1
    sides = ((own - listed, "left this site, and the ledger lacks it"), (listed - own, "did not leave this site"))
    lines = [
        (fields, f"round {fields[0]}, {fields[1]}, {fields[2]}: {fields[3]} bytes with digest {fields[4][:12]} {words}")
        for counted, words in sides
        for fields in counted.elements()
    ]
    yield from (line for _, line in sorted(lines))
