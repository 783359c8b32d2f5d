"""The files of an unfinished prepared set: growing arrays and rows, a journal, and the directory that holds them.

A set grows in a partial directory beside the destination. The writer holds a lock on this directory, which the system
releases when the process ends in any way. A later writer of the same destination removes unlocked partial directories.
A directory created under a key is resumed by a writer with the same key, so a long import continues where it stopped.

A journal in the partial directory has one line per finished piece of work with the resulting ends of the set's files. A
line is written after its images are safely on disk. After a kill or power failure, the remaining lines are correct,
although the last ones may be missing.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_line, parse_json


def import_key(beginning: bytes, lines: Iterable[str]) -> str:
    """Return the key of an unfinished import: a digest of all that decides the bytes, and of the dates of files."""
    digest = hashlib.sha256(beginning)
    for line in lines:
        digest.update(line.encode(errors="surrogateescape"))
    return f"import-{digest.hexdigest()[:16]}"


class _GrowingFile:
    """A file that grows by batches, and keeps existing content when it is opened."""

    def __init__(self, path: Path) -> None:
        """Open the file for writing."""
        self._file: IO[bytes] = path.open("r+b" if path.exists() else "w+b")

    def make_durable(self) -> None:
        """Flush to disk, so that the content survives a power failure."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        """Return the file, which is already open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()


class ArrayFile(_GrowingFile):
    """A `.npy` file that grows by batches; closing it corrects the header."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, count: int = 0) -> None:
        """Create a file, or continue after the first `count` entries of an existing one."""
        self._shape, self._dtype, self._count = shape, np.dtype(dtype), count
        super().__init__(path)
        self._write_header()
        self._start = self._file.tell()
        self._file.truncate(self._start + count * _stride(shape, self._dtype))
        self._file.seek(0, os.SEEK_END)

    @staticmethod
    def entries(path: Path, shape: tuple[int, ...], dtype: Any) -> int:
        """Return the number of complete entries in a file, regardless of its header."""
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                np.lib.format.read_array_header_1_0(file)
                start = file.tell()
        except (OSError, ValueError):
            return 0
        return (path.stat().st_size - start) // _stride(shape, np.dtype(dtype))

    def append(self, batch: npt.NDArray[Any]) -> None:
        """Append a batch."""
        self._file.write(np.ascontiguousarray(batch).data)
        self._count += len(batch)

    def __exit__(self, *_: object) -> None:
        """Correct the header and close the file."""
        with self._file:
            self._file.seek(0)
            self._write_header()
            # NumPy pads headers so that the first axis can grow; otherwise data would be overwritten.
            assert self._file.tell() == self._start

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._count, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def _stride(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the size of one entry in bytes."""
    return math.prod(shape) * int(dtype.itemsize)


class RowsFile(_GrowingFile):
    """A CSV file that grows by rows and records its length in bytes."""

    def __init__(self, path: Path, columns: Sequence[str], length: int = 0) -> None:
        """Create a table, or continue after the first `length` bytes of an existing one."""
        super().__init__(path)
        self._file.truncate(length)
        self._file.seek(length)
        self.length = length
        if not length:
            self.append([columns])

    def append(self, rows: Iterable[Sequence[object]]) -> None:
        """Append rows."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.length += self._file.write(text.getvalue().encode())


JOURNAL = "journal.jsonl"
EVERY = 1.0
"""Seconds between two flushes to disk."""

Record = dict[str, Any]
_COUNT, _LENGTH = "count", "rows"


class Journal:
    """The journal of an unfinished set; new lines stay in memory until the next flush."""

    def __init__(self, path: Path, every: float = EVERY) -> None:
        """Read the lines of an earlier attempt, up to the first damaged line."""
        self._path, self._every, self._last = path, every, time.monotonic()
        self._waiting: list[Record] = []
        self._lines: list[Record] = []
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            try:
                self._lines.append(parse_json(line))
            except ValueError:
                break

    def keep_reached(self, images: int, length: int) -> tuple[int, int]:
        """Drop lines beyond the content of the files; return the image count and row bytes that the rest covers."""
        while self._lines and (self._lines[-1][_COUNT] > images or self._lines[-1][_LENGTH] > length):
            self._lines.pop()
        text = "".join(json_line(line) for line in self._lines)
        self._path.write_text(text, encoding="utf-8")
        return (self._lines[-1][_COUNT], self._lines[-1][_LENGTH]) if self._lines else (0, 0)

    @property
    def records(self) -> list[Record]:
        """The finished pieces of work, in order."""
        return [line["done"] for line in self._lines]

    def note(self, record: Mapping[str, Any], images: int, length: int, make_durable: Callable[[], None]) -> None:
        """Record a finished piece of work and the resulting ends of the files."""
        self._waiting.append({_COUNT: images, _LENGTH: length, "done": dict(record)})
        if time.monotonic() - self._last >= self._every:
            self.settle(make_durable)

    def settle(self, make_durable: Callable[[], None]) -> None:
        """Write the pending lines after flushing the files that they describe."""
        make_durable()
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(json_line(line) for line in self._waiting)
            file.flush()
            os.fsync(file.fileno())
        self._lines += self._waiting
        self._waiting, self._last = [], time.monotonic()


_ENDING = ".partial"


class PartialDirectory:
    """A locked directory beside the destination, to be renamed to the destination or removed."""

    def __init__(self, destination: Path, key: str | None = None) -> None:
        """Remove the partial directories of earlier attempts at this destination, then create a new one.

        With a key, resume the partial directory of an earlier attempt under the same key instead of removing it.
        """
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination, key)
        while True:
            self.path = destination.parent / f"{_start(destination)}{key or secrets.token_hex(4)}{_ENDING}"
            self.path.mkdir(exist_ok=key is not None)
            self._handle = os.open(self.path, os.O_RDONLY)
            locked = _lock(self._handle)
            # Another process's sweep may have removed the directory before it was locked; retry under another name.
            if locked is not False and self.path.is_dir():
                return
            os.close(self._handle)
            if key is not None and locked is False:
                raise UserError(str(destination), "is being written by another process")

    def remove(self) -> None:
        """Delete the directory, unless it was renamed, and release the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Release the lock and keep the content for a later attempt with the same key."""
        os.close(self._handle)


def _start(destination: Path) -> str:
    return f".{destination.name}."


def _sweep(destination: Path, key: str | None) -> None:
    """Remove unlocked partial directories of the same destination, except the one of this key."""
    for path in destination.parent.iterdir():
        # The random part contains no dot, so directories of a set "a.b" are not mistaken for those of a set "a".
        middle = path.name.removeprefix(_start(destination)).removesuffix(_ENDING)
        if path.name != f"{_start(destination)}{middle}{_ENDING}" or "." in middle or path.is_symlink():
            continue
        if middle == key:
            continue
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # removed in the meantime, or no permission
            continue
        try:
            if _lock(handle):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Try to lock; return None on file systems without locks, where nothing is swept."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
