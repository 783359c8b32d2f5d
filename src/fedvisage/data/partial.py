"""The directory in which a set grows until it is whole, and the removal of those that killed processes left.

Its writer holds a lock on the directory. The system lets go of it when the process ends, however it ends.
"""

import fcntl
import os
import secrets
import shutil
from pathlib import Path

_ENDING = ".partial"


class PartialDirectory:
    """A locked directory beside the destination, to be renamed to it or removed."""

    def __init__(self, destination: Path) -> None:
        """Remove what is left of earlier attempts at the same destination, then make a directory of our own."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        while True:
            self.path = destination.parent / f"{_start(destination)}{secrets.token_hex(4)}{_ENDING}"
            self.path.mkdir()
            self._handle = os.open(self.path, os.O_RDONLY)
            # A sweep may have taken it before it was locked; then the next attempt is made under another name.
            if _lock(self._handle) is not False and self.path.is_dir():
                return
            os.close(self._handle)

    def remove(self) -> None:
        """Remove what is left under this name, and let go of the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def _start(destination: Path) -> str:
    return f".{destination.name}."


def _sweep(destination: Path) -> None:
    """Remove the directories of the same destination that nobody holds."""
    for path in destination.parent.iterdir():
        # The random part has no dot: the directories of a set "a.b" are not those of a set "a".
        middle = path.name.removeprefix(_start(destination)).removesuffix(_ENDING)
        if path.name != f"{_start(destination)}{middle}{_ENDING}" or "." in middle or path.is_symlink():
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
