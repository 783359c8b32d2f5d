"""Writes prepared sets: streamed to disk, complete or not there at all."""

import csv
import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedvisage.data.crops import CropRecord
from fedvisage.data.manifest import (
    DEPTH,
    DEPTH_SIZE,
    FORMAT_VERSION,
    IMAGES,
    NAME_LIMIT,
    POINT_COUNT,
    POINTS,
    REPORT,
    ROWS,
    SET,
    SIZE_LIMIT,
    SOURCE_LIMIT,
    FileEntry,
    FileName,
    Manifest,
    file_digest,
)
from fedvisage.data.partial import PartialDirectory
from fedvisage.data.rows import COLUMNS, GROUP, Row, RowRules
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import NO_ROOM, sync_directory


class Writer:
    """Writes one prepared set; use it as a context manager.

    Everything goes to a temporary directory beside the destination, which is renamed at the end of the block.
    If the block raises, nothing is left. `species` and `splits` count what was added.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        size: int,
        source: str,
        depth: bool = False,
        points: bool = False,
        identities: bool = False,
        crop: CropRecord | None = None,
    ) -> None:
        """Check the destination; `depth` and `points` say whether every image comes with them, `crop` how it was cut.

        With `identities` it is an identity set, for face recognition, and every image comes with a group.
        """
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UserError(str(path), "already exists; choose another destination or remove it first")
        if not 1 <= size <= SIZE_LIMIT:
            raise UserError("size", f"must be between 1 and {SIZE_LIMIT} pixels, got {size}")
        if not (name.isprintable() and 1 <= len(name) <= NAME_LIMIT):
            raise UserError("name", f"must be 1 to {NAME_LIMIT} printable characters, got {name[:80]!r}")
        if not (source.isprintable() and len(source) <= SOURCE_LIMIT):
            raise ValueError(f"source must be at most {SOURCE_LIMIT} printable characters")
        self.path, self.name, self.size, self.source, self.crop = path, name, size, source, crop
        self.species: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.subjects: set[str] = set()
        self._directory: PartialDirectory | None = None
        self._rules = RowRules(str(path))
        self._open_files = ExitStack()
        self._arrays: dict[FileName, _ArrayFile] = {}
        self._columns = (*COLUMNS, GROUP) if identities else COLUMNS
        self._shapes: dict[FileName, tuple[tuple[int, ...], Any]] = {IMAGES: ((size, size, 3), np.uint8)}
        if depth:
            self._shapes[DEPTH] = ((DEPTH_SIZE, DEPTH_SIZE), np.uint8)
        if points:
            self._shapes[POINTS] = ((POINT_COUNT, 2), np.float32)

    def __enter__(self) -> "Writer":
        """Create the temporary directory and its files."""
        with ExitStack() as failing:
            failing.callback(self._discard)
            with _disk(self.path):
                self._directory = PartialDirectory(self.path)
                for file, (shape, dtype) in self._shapes.items():
                    self._arrays[file] = self._open_files.enter_context(_ArrayFile(self._partial / file, shape, dtype))
                rows = (self._partial / ROWS).open("w", encoding="utf-8", newline="")
                self._rows = csv.writer(self._open_files.enter_context(rows), lineterminator="\n")
                self._rows.writerow(self._columns)
            failing.pop_all()
        return self

    def add(
        self,
        images: npt.NDArray[np.uint8],
        *,
        label: Sequence[int] | npt.NDArray[Any],
        species: Sequence[str] | npt.NDArray[Any],
        subject: Sequence[str] | npt.NDArray[Any],
        video: Sequence[str] | npt.NDArray[Any],
        frame: Sequence[int] | npt.NDArray[Any],
        split: Sequence[str] | npt.NDArray[Any],
        item: Sequence[str] | npt.NDArray[Any],
        depth: npt.NDArray[np.uint8] | None = None,
        points: npt.NDArray[np.float32] | None = None,
        group: Sequence[str] | npt.NDArray[Any] | None = None,
    ) -> None:
        """Append a batch of B images; every column has B entries."""
        if (group is None) != (GROUP not in self._columns):
            raise ValueError("an identity set's images come with groups, those of other sets do not")
        columns = (item, label, species, subject, video, frame, split)
        arrays: dict[FileName, Any] = {IMAGES: images, DEPTH: depth, POINTS: points}
        groups = [None] * len(item) if group is None else [str(one) for one in group]
        self._check_batch(arrays, [len(column) for column in (*columns, groups)])
        rows = [
            Row(str(i), int(y), str(s), str(who), str(v), int(f), str(part), g)
            for i, y, s, who, v, f, part, g in zip(*columns, groups, strict=True)
        ]
        for row in rows:
            self._rules.check(row)
        with _disk(self.path):
            for file, opened in self._arrays.items():
                opened.append(arrays[file])
            self._rows.writerows(row.values() for row in rows)
        self.species.update(row.species for row in rows)
        self.splits.update(row.split for row in rows)
        self.subjects.update(row.subject for row in rows)

    @property
    def count(self) -> int:
        """Count the images that were added."""
        return self.splits.total()

    def attach_report(self, text: str) -> None:
        """Put a report of how the set was made (JSON text) into the set."""
        with _disk(self.path):
            (self._partial / REPORT).write_text(text, encoding="utf-8")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the set, or remove every trace of it if the block raised."""
        try:
            if kind is None:
                with _disk(self.path):
                    self._finish()
        finally:
            self._discard()

    @property
    def _partial(self) -> Path:
        assert self._directory is not None, "a Writer is used as a context manager"
        return self._directory.path

    def _check_batch(self, arrays: dict[FileName, Any], lengths: list[int]) -> None:
        batch = lengths[0]
        if set(lengths) != {batch}:
            raise ValueError(f"columns of different lengths: {lengths}")
        for file, array in arrays.items():
            if file not in self._shapes:
                if array is not None:
                    raise ValueError(f"{file}: given, but the writer was not opened with it")
                continue
            shape, dtype = self._shapes[file]
            if array is None or array.shape != (batch, *shape) or array.dtype != dtype:
                actual = "nothing" if array is None else f"{array.dtype} {array.shape}"
                raise ValueError(f"{file}: expected {np.dtype(dtype)} {(batch, *shape)}, got {actual}")
            if file == POINTS and not np.isfinite(array).all():
                raise ValueError(f"{file}: points must be finite")

    def _finish(self) -> None:
        if self.count == 0:
            raise UserError(str(self.path), "no image was added; a prepared set needs at least one")
        self._open_files.close()
        files = {}
        for path in sorted(self._partial.iterdir()):
            _make_durable(path)
            files[path.name] = FileEntry(bytes=path.stat().st_size, sha256=file_digest(path))
        content = {"format": FORMAT_VERSION, "name": self.name, "size": self.size, "count": self.count}
        manifest = Manifest.model_validate(content | {"source": self.source, "crop": self.crop, "files": files})
        text = manifest.model_dump_json(indent=1, exclude={"crop"} if self.crop is None else None)
        (self._partial / SET).write_text(text + "\n", encoding="utf-8")
        _make_durable(self._partial / SET)
        sync_directory(self._partial)
        self._publish()

    def _publish(self) -> None:
        try:
            # Replaces an empty directory and nothing else: of two writers of the same set the first one wins.
            os.rename(self._partial, self.path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                message = "was made by another process meanwhile and left alone"
                raise UserError(str(self.path), message) from None
            raise
        sync_directory(self.path.parent)

    def _discard(self) -> None:
        # Closing flushes what is buffered, which fails again on a full disk: the first error counts.
        with suppress(OSError):
            self._open_files.close()
        if self._directory:
            self._directory.remove()
            self._directory = None


class _ArrayFile:
    """A `.npy` file that grows by batches; its header is corrected when it is closed."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype, self._count = shape, np.dtype(dtype), 0
        self._file: IO[bytes] = path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    def append(self, batch: npt.NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(batch).data)
        self._count += len(batch)

    def __enter__(self) -> "_ArrayFile":
        return self

    def __exit__(self, *_: object) -> None:
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


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Translate failures of the disk into messages that name the set."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            message = "the disk is full; nothing was kept. Free some space and run again"
            raise RunFailed(f"{path}: {message}") from error
        raise UserError(str(path), f"cannot be written: {error.strerror or error}") from error


def _make_durable(path: Path) -> None:
    """Make the content of a file survive a power failure."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
