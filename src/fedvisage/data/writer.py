"""Writer of prepared sets: streams images to disk and publishes a set only when it is complete."""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import NoRoom, UserError
from fedvisage.base.files import AGAIN, NO_ROOM, file_digest, sync_directory
from fedvisage.data.crops import CropRecord
from fedvisage.data.partial_set import EVERY, JOURNAL, ArrayFile, Journal, PartialDirectory, Record, RowsFile
from fedvisage.data.prepared import (
    DEPTH,
    DEPTH_SIZE,
    FURTHER_FORMAT,
    FURTHER_IMAGES,
    IMAGES,
    NAME_LIMIT,
    PLAIN_FORMAT,
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
)
from fedvisage.data.rows import COLUMNS, GROUP, ImageRow, RowRules, are_further, rows_of


class RowColumns(TypedDict):
    """The columns of a batch of images, with one value per image; only images of identity sets have a group."""

    label: Sequence[int] | npt.NDArray[Any]
    species: Sequence[str] | npt.NDArray[Any]
    subject: Sequence[str] | npt.NDArray[Any]
    video: Sequence[str] | npt.NDArray[Any]
    frame: Sequence[int] | npt.NDArray[Any]
    split: Sequence[str] | npt.NDArray[Any]
    item: Sequence[str] | npt.NDArray[Any]
    group: NotRequired[Sequence[str] | npt.NDArray[Any] | None]


class Writer:
    """Writes one prepared set; use it as a context manager.

    All files go to a temporary directory beside the destination, which is renamed at the end of the block. If the block
    raises, nothing remains. `species` and `splits` count the added images.

    With a `key`, a killed or interrupted process keeps the work that it noted as done, and the next writer with the
    same key continues after it; `done` holds the notes.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        name: str,
        size: int,
        source: str,
        depth: bool = False,
        points: bool = False,
        identities: bool = False,
        crop: CropRecord | None = None,
        further_margins: Sequence[float] = (),
        further: Sequence[str] = (),
        key: str | None = None,
        every: float = EVERY,
    ) -> None:
        """Check the destination and arguments.

        Args:
            path: destination; must not exist or be an empty directory.
            name: name of the set.
            size: side of the images in pixels.
            source: origin of the set.
            depth: True if every image has a depth map.
            points: True if every image has points.
            identities: True for an identity set for face recognition, whose images all have a group.
            crop: crop record of the images.
            further_margins: margins of further crops of every image.
            further: names of further columns.
            key: key under which a later writer can resume.
            every: seconds between two flushes of finished work to disk.
        """
        path = Path(path)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UserError(str(path), "already exists; choose another destination or remove it first")
        if not 1 <= size <= SIZE_LIMIT:
            raise UserError("size", f"must be between 1 and {SIZE_LIMIT} pixels, got {size}")
        if not (name.isprintable() and 1 <= len(name) <= NAME_LIMIT):
            raise UserError("name", f"must be 1 to {NAME_LIMIT} printable characters, got {name[:80]!r}")
        if not (source.isprintable() and len(source) <= SOURCE_LIMIT):
            raise ValueError(f"source must be at most {SOURCE_LIMIT} printable characters")
        if not are_further(further):
            raise ValueError(f"{further} cannot be names of extra columns")
        self.path, self.name, self.size, self.source, self.crop = path, name, size, source, crop
        self.further_margins = tuple(further_margins)
        self.done: list[Record] = []
        self.further = tuple(further)
        self._key, self._every = key, every
        self._journal: Journal | None = None
        self.species: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.subjects: set[str] = set()
        self._directory: PartialDirectory | None = None
        self._rules = RowRules(str(path))
        self._open_files = ExitStack()
        self._arrays: dict[FileName, ArrayFile] = {}
        self._columns = (*COLUMNS, GROUP, *further) if identities else (*COLUMNS, *further)
        self._shapes: dict[FileName, tuple[tuple[int, ...], Any]] = {IMAGES: ((size, size, 3), np.uint8)}
        for file, _ in zip(FURTHER_IMAGES, self.further_margins, strict=False):
            self._shapes[file] = ((size, size, 3), np.uint8)
        if depth:
            self._shapes[DEPTH] = ((DEPTH_SIZE, DEPTH_SIZE), np.uint8)
        if points:
            self._shapes[POINTS] = ((POINT_COUNT, 2), np.float32)

    def __enter__(self) -> Writer:
        """Create the temporary directory and its files, or resume those of an earlier attempt."""
        # A failure in this block discards the directory; success cancels that callback.
        with ExitStack() as failing:
            failing.callback(self._discard)
            with _disk_errors(self.path):
                self._directory = PartialDirectory(self.path, self._key)
                count = length = 0
                if self._key:
                    # Continue after the images and row bytes that the journal of an earlier attempt covers.
                    self._journal = Journal(self._partial / JOURNAL, self._every)
                    rows = self._partial / ROWS
                    images = min(ArrayFile.entries(self._partial / file, *form) for file, form in self._shapes.items())
                    count, length = self._journal.keep_reached(images, rows.stat().st_size if rows.exists() else 0)
                    beginning = rows.read_bytes()[:length].decode() if length else ""
                    for row in rows_of(io.StringIO(beginning, newline=""), str(rows)):
                        self._count(row)
                    self.done = self._journal.records
                for file, (shape, dtype) in self._shapes.items():
                    array_file = ArrayFile(self._partial / file, shape, dtype, count)
                    self._arrays[file] = self._open_files.enter_context(array_file)
                self._rows = self._open_files.enter_context(RowsFile(self._partial / ROWS, self._columns, length))
            failing.pop_all()
        return self

    def note(self, **record: Any) -> None:
        """Note that a piece of work is done and all its images are added; a later attempt continues after it."""
        if self._journal is not None:
            with _disk_errors(self.path):
                self._journal.note(record, self.count, self._rows.length, self._make_files_durable)

    def _make_files_durable(self) -> None:
        for array_file in self._arrays.values():
            array_file.make_durable()
        self._rows.make_durable()

    def _count(self, row: ImageRow) -> None:
        self._rules.check(row)
        self.species[row.species] += 1
        self.splits[row.split] += 1
        self.subjects.add(row.subject)

    def add(
        self,
        images: npt.NDArray[np.uint8],
        *,
        depth: npt.NDArray[np.uint8] | None = None,
        points: npt.NDArray[np.float32] | None = None,
        at_further_margins: Sequence[npt.NDArray[np.uint8]] = (),
        further: Mapping[str, Sequence[str]] | None = None,
        **columns: Unpack[RowColumns],
    ) -> None:
        """Append a batch of B images; every column has B entries."""
        if columns.keys() - {GROUP} != {*COLUMNS}:
            raise TypeError(f"a batch has the columns {', '.join(COLUMNS)}, got {', '.join(columns)}")
        if tuple(further or ()) != self.further:
            raise ValueError(f"the further columns are {self.further}")
        place, count, group = str(self.path), len(images), columns.get("group")
        if (group is None) != (GROUP not in self._columns):
            raise ValueError("images need groups in an identity set, and must not have them in other sets")
        arrays: dict[FileName, Any] = {IMAGES: images, DEPTH: depth, POINTS: points}
        arrays |= dict(zip(FURTHER_IMAGES, at_further_margins, strict=False))
        if missing := self._shapes.keys() - arrays.keys():
            raise ValueError(f"{min(missing)}: expected crops of a further margin, got nothing")
        for file, array in arrays.items():
            if file not in self._shapes and array is not None:
                raise ValueError(f"{file}: given, but the writer was not opened with it")
            if file not in self._shapes:
                continue
            shape, dtype = self._shapes[file]
            if array is None or array.shape != (count, *shape) or array.dtype != dtype:
                actual = "nothing" if array is None else f"{array.dtype} {array.shape}"
                raise UserError(place, f"{file}: expected {np.dtype(dtype)} {(count, *shape)}, got {actual}")
            if file == POINTS and not np.isfinite(array).all():
                raise ValueError(f"{file}: points must be finite")
        for name, values in {**columns, **(further or {})}.items():
            shape_of_values = np.asarray(values).shape
            if values is not None and shape_of_values[:1] != (count,):
                raise UserError(place, f"{name}: expected one value per image ({count}), got shape {shape_of_values}")
        names, labels, frames = columns["item"], columns["label"], columns["frame"]
        kinds, people, videos, splits = columns["species"], columns["subject"], columns["video"], columns["split"]
        groups = [None] * count if group is None else [str(name) for name in group]
        texts = [*zip(*further.values(), strict=True)] if further else [()] * count
        try:
            rows = [
                ImageRow(str(i), int(y), str(s), str(person), str(v), int(f), str(part), g, tuple(extra))
                for i, y, s, person, v, f, part, g, extra in zip(
                    names, labels, kinds, people, videos, frames, splits, groups, texts, strict=True
                )
            ]
        except (TypeError, ValueError) as error:
            raise UserError(place, f"label and frame must be whole numbers: {error}") from error
        # Check all rows before writing any array or table.
        for row in rows:
            self._count(row)
        with _disk_errors(self.path):
            for file, array_file in self._arrays.items():
                array_file.append(arrays[file])
            self._rows.append(row.values() for row in rows)

    @property
    def count(self) -> int:
        """Number of added images."""
        return self.splits.total()

    def attach_report(self, text: str) -> None:
        """Add an import report (JSON text) to the set."""
        with _disk_errors(self.path):
            (self._partial / REPORT).write_text(text, encoding="utf-8")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the set, or remove all files if the block raised; noted work survives an interruption."""
        try:
            if kind is None:
                with _disk_errors(self.path):
                    self._finish()
            elif self._journal is not None and kind is KeyboardInterrupt:
                with _disk_errors(self.path):
                    self._journal.settle(self._make_files_durable)
        finally:
            self._discard(keep=kind is KeyboardInterrupt and self._journal is not None)

    @property
    def _partial(self) -> Path:
        assert self._directory is not None, "a Writer is used as a context manager"
        return self._directory.path

    def _finish(self) -> None:
        if self.count == 0:
            raise UserError(str(self.path), "no images were added; a prepared set needs at least one")
        self._open_files.close()
        if self._journal is not None:
            (self._partial / JOURNAL).unlink(missing_ok=True)
        files: dict[Any, FileEntry] = {}
        for path in sorted(self._partial.iterdir()):
            _make_durable(path)
            files[path.name] = FileEntry(bytes=path.stat().st_size, sha256=file_digest(path))
        # Publish in a crash-safe order: data files, then `set.json`, then the directory entry.
        manifest = Manifest(
            format=FURTHER_FORMAT if self.further else PLAIN_FORMAT,
            name=self.name,
            size=self.size,
            count=self.count,
            source=self.source,
            crop=self.crop,
            further_margins=self.further_margins,
            files=files,
        )
        empty = {name for name in ("crop", "further_margins") if not getattr(self, name)}
        text = manifest.model_dump_json(indent=1, exclude=empty)
        (self._partial / SET).write_text(text + "\n", encoding="utf-8")
        _make_durable(self._partial / SET)
        sync_directory(self._partial)
        try:
            # os.rename replaces an empty directory and nothing else, so the first of two writers of the same set wins.
            os.rename(self._partial, self.path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                message = "was created by another process in the meantime and left unchanged"
                raise UserError(str(self.path), message) from None
            raise
        sync_directory(self.path.parent)

    def _discard(self, keep: bool = False) -> None:
        # Closing flushes buffers, which fails again on a full disk; only the first error matters.
        with suppress(OSError):
            self._open_files.close()
        if self._directory:
            if keep:
                self._directory.leave()
            else:
                self._directory.remove()
            self._directory = None


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Convert disk errors to messages that name the set."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise NoRoom(str(path), f"nothing was saved: {NO_ROOM[error.errno]}", AGAIN) from error
        raise UserError(str(path), f"cannot be written: {error.strerror or error}") from error


def _make_durable(path: Path) -> None:
    """Flush a file to disk, so that its content survives a power failure."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
