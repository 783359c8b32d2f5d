"""The directory in which a set grows until it is whole, and the removal of those that killed processes left.

Its writer holds a lock on the directory. The system lets go of it when the process ends, however it ends. A directory
that is made under a key is taken up again under the same key: so a long import goes on where it stopped.
"""

import fcntl
import os
import secrets
import shutil
from pathlib import Path

from fedvisage.errors import UserError

_ENDING = ".partial"


class PartialDirectory:
    """A locked directory beside the destination, to be renamed to it or removed."""

    def __init__(self, destination: Path, key: str | None = None) -> None:
        """Remove what is left of earlier attempts at the same destination, then make a directory of our own.

        With a key, what an earlier attempt under the same key left is not removed but taken up.
        """
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination, key)
        while True:
            self.path = destination.parent / f"{_start(destination)}{key or secrets.token_hex(4)}{_ENDING}"
            self.path.mkdir(exist_ok=key is not None)
            self._handle = os.open(self.path, os.O_RDONLY)
            locked = _lock(self._handle)
            # A sweep may have taken it before it was locked; then the next attempt is made under another name.
            if locked is not False and self.path.is_dir():
                return
            os.close(self._handle)
            if key is not None and locked is False:
                raise UserError(str(destination), "is being written by another process")

    def remove(self) -> None:
        """Remove what is left under this name, and let go of the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Let go of the lock, and leave what is there for somebody with the same key."""
        os.close(self._handle)


def _start(destination: Path) -> str:
    return f".{destination.name}."


def _sweep(destination: Path, key: str | None) -> None:
    """Remove the directories of the same destination that nobody holds, but for that of the key."""
    for path in destination.parent.iterdir():
        # The random part has no dot: the directories of a set "a.b" are not those of a set "a".
        middle = path.name.removeprefix(_start(destination)).removesuffix(_ENDING)
        if path.name != f"{_start(destination)}{middle}{_ENDING}" or "." in middle or path.is_symlink():
            continue
        if middle == key:
            continue
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # gone meanwhile, or not ours to open
            continue
        try:
            if _lock(handle):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Return whether we hold the lock now, or None on file systems that have no locks: there nothing is swept."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
