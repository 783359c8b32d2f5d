"""The files below the root of a dataset: their listing, and checks whether they are readable."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedvisage.base.errors import UserError, printable
from fedvisage.data.rows import is_safe_path
from fedvisage.faces import pictures

VIDEO_ENDINGS = pictures.VIDEO_ENDINGS
ARRAY_ENDINGS = (".hdf5", ".h5")
MEDIA_ENDINGS = (*VIDEO_ENDINGS, *pictures.ENDINGS, *ARRAY_ENDINGS)
ARCHIVE_ENDINGS = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".001", ".z01")

_NAME_LIMIT = 200
_LIST_LIMIT = 256 << 20
_SHOWN = 8


@dataclass(frozen=True)
class Tree:
    """A dataset's files by their names below the root, sorted; hidden ones are only counted."""

    root: Path
    files: tuple[str, ...]
    hidden: int = 0

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.root / name

    def lines(self, name: str) -> list[tuple[int, str]]:
        """Read a list: its non-empty lines with their numbers, for any line ending."""
        path = self.path(name)
        if fault := fault_of_file(path, name, self.root, (path.suffix.lower(),)):
            raise UserError(str(path), f"{fault}; it is needed to check the names")
        if path.stat().st_size > _LIST_LIMIT:
            raise UserError(str(path), f"is larger than {_LIST_LIMIT >> 20} MiB: not a list")
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(str(path), f"is not text: {error}") from None
        return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]

    def mismatch(self, fault: str) -> UserError:
        """Return the error for a wrong root, with its contents and possible obstacles: archives, linked directories."""
        packed = [name for name in self.files if PurePosixPath(name).suffix.lower() in ARCHIVE_ENDINGS]
        linked = [name for name in self.files if self.path(name).is_symlink() and self.path(name).is_dir()]
        text = f"; {printable(packed[0])} is an archive: unpack it first" if packed else ""
        text += f"; {printable(linked[0])} is a linked directory, and links are not followed" if linked else ""
        if not self.files:
            return UserError(str(self.root), f"{fault}; the directory is empty{text}")
        tops = sorted({printable(PurePosixPath(name).parts[0]) for name in self.files})
        endings = Counter(PurePosixPath(name).suffix.lower() or "no ending" for name in self.files)
        counts = ", ".join(f"{count} × {printable(ending)}" for ending, count in endings.most_common(4))
        shown = f"{', '.join(tops[:_SHOWN])}{', …' if len(tops) > _SHOWN else ''}"
        return UserError(str(self.root), f"{fault}; found {shown} ({counts}){text}")


def ending_of(name: str) -> str:
    """Return the ending of a name in lower case."""
    return PurePosixPath(name).suffix.lower()


def without_ending(name: str) -> str:
    """Return a name without its ending."""
    return name[: len(name) - len(PurePosixPath(name).suffix)]


def walk(root: Path, leave_out: Path | None = None) -> Tree:
    """List the files below a root; linked directories are listed but not entered.

    The files in the directory `leave_out`, such as depth maps, are not part of the dataset and are left out.
    """
    if not root.is_dir():
        raise UserError(str(root), "directory not found; give the folder that contains the dataset")
    outside, hidden = "", Counter[str]()
    if leave_out is not None and leave_out.resolve().is_relative_to(root.resolve()):
        if leave_out.resolve() == root.resolve():
            raise UserError(str(leave_out), "is the dataset itself; depth maps need a directory of their own")
        outside = f"{leave_out.resolve().relative_to(root.resolve()).as_posix()}/"
    names = sorted(path.relative_to(root).as_posix() for path in files_below(root, hidden))
    return Tree(root, tuple(name for name in names if not (outside and name.startswith(outside))), hidden.total())


def files_below(root: Path, hidden: Counter[str] | None = None) -> Iterator[Path]:
    """Walk over all files and links, leaving out hidden ones and never following linked directories."""
    for folder, folders, files in os.walk(root, onerror=_refuse, followlinks=False):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in links and not name.startswith(".")]
        if hidden is not None:
            hidden["files"] += sum(map(pictures.is_hidden, files))
        yield from (Path(folder) / name for name in files + links if not pictures.is_hidden(name))


def fault_of_file(path: Path, name: str, root: Path, endings: tuple[str, ...]) -> str | None:
    """Return the reason why a directory entry is unusable as a file of the dataset, if any, without reading it."""
    if not name.isprintable() or len(name) > _NAME_LIMIT or not is_safe_path(name):
        return f"its name is longer than {_NAME_LIMIT} characters or has unsupported characters"
    if path.is_symlink():
        if path.is_dir():
            return "a link to a directory; links to directories are not followed"
        # Unlike Path.resolve, realpath accepts a link to itself, which is unreadable.
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            return "a link to outside the folder"
        if not path.exists():
            return "a link to a missing file"
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if path.suffix.lower() not in endings:
        return f"files that end in {printable(path.suffix)!r} are not supported"
    return "an empty file" if status.st_size == 0 else None


def _refuse(error: OSError) -> None:
    raise UserError(str(error.filename), f"cannot be read: {error.strerror}")
