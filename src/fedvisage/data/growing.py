"""The files of a set that is being written: arrays that grow by batches, and rows; both can be cut back."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt


def _opened(path: Path) -> IO[bytes]:
    """Open a file for writing that may have content from before."""
    return path.open("r+b" if path.exists() else "w+b")


class ArrayFile:
    """A `.npy` file that grows by batches; its header is corrected when it is closed."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, count: int = 0) -> None:
        """Begin a file, or go on behind the first `count` entries of one."""
        self._shape, self._dtype, self._count = shape, np.dtype(dtype), count
        self._file = _opened(path)
        self._write_header()
        self._start = self._file.tell()
        self._file.truncate(self._start + count * _stride(shape, self._dtype))
        self._file.seek(0, os.SEEK_END)

    @staticmethod
    def entries(path: Path, shape: tuple[int, ...], dtype: Any) -> int:
        """Return how many whole entries lie in a file, whatever its header says of that."""
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                np.lib.format.read_array_header_1_0(file)
                start = file.tell()
        except (OSError, ValueError):
            return 0
        return (path.stat().st_size - start) // _stride(shape, np.dtype(dtype))

    def append(self, batch: npt.NDArray[Any]) -> None:
        """Write a batch behind the others."""
        self._file.write(np.ascontiguousarray(batch).data)
        self._count += len(batch)

    def make_durable(self) -> None:
        """Make what was written survive a power failure."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> ArrayFile:
        """Nothing more is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Correct the header and close."""
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
    """Return the bytes of one entry."""
    return math.prod(shape) * int(dtype.itemsize)


class RowsFile:
    """A CSV file that grows by rows and knows its length in bytes."""

    def __init__(self, path: Path, columns: Sequence[str], length: int = 0) -> None:
        """Begin a table, or go on behind the first `length` bytes of one."""
        self._file = _opened(path)
        self._file.truncate(length)
        self._file.seek(length)
        self.length = length
        if not length:
            self.append([columns])

    def append(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows behind the others."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.length += self._file.write(text.getvalue().encode())

    def make_durable(self) -> None:
        """Make what was written survive a power failure."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> RowsFile:
        """Nothing more is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self._file.close()
