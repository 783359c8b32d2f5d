"""Directories that are written whole or not at all: beside where they are wanted, and then put in place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from fedvisage.data.manifest import FileEntry, file_digest
from fedvisage.device.config import BESIDE, Beside
from fedvisage.errors import UserError
from fedvisage.files import sync_directory


def check_free(out: Path) -> None:
    """Refuse a directory that something lies in."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that nothing is written over")


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """Lend a directory beside the one that is wanted, which takes its place when all is well, and is gone if not."""
    out.parent.mkdir(parents=True, exist_ok=True)
    place = Path(mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        yield place
        place.chmod(0o755)
        place.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def entry_of(path: Path) -> FileEntry:
    """Return a file's size and digest."""
    return FileEntry(bytes=path.stat().st_size, sha256=file_digest(path))


def files_beside(directory: Path) -> dict[Beside, FileEntry]:
    """Return size and digest of each file beside the graphs that `config.json` records."""
    return {name: entry_of(directory / name) for name in BESIDE if (directory / name).exists()}
