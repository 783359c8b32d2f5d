"""The ledger: a line for every field that crossed the wire, in a file that can only grow or be cut back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.errors import UserError


class JsonLines:
    """A file of JSON lines that remembers its length, so that a resumed run continues exactly at its checkpoint."""

    def __init__(self, path: Path) -> None:
        """Open for appending; the file is created when it is absent."""
        self.path = path
        self._file = path.open("ab")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def flush(self) -> int:
        """Make all lines durable and return the file's length."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def cut(self, length: int) -> None:
        """Drop what was written after a checkpoint."""
        self._file.flush()
        if self._file.seek(0, os.SEEK_END) < length:
            raise UserError(str(self.path), "is shorter than it was at the last checkpoint; put it back to resume")
        os.truncate(self.path, length)
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read all whole lines of a file of JSON lines."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


@dataclass(frozen=True)
class Entry:
    """One field of one message, as the ledger records it."""

    round: int
    site: str
    direction: str
    call: str
    field: str
    kind: str
    bytes: int
    digest: str
    guarantee: str = ""
