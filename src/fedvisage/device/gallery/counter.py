"""The counter of a gallery, kept with its key: it records the newest state of the file.

A copy of an older file is complete and was written with the key, so only data outside the file can show that it is old.
The counter is a small file in a folder beside the key. It holds number and digest of the newest state in two slots,
overwritten in turn: a process that is killed while writing leaves the other slot intact.

A change is committed to the gallery first and counted afterwards. A gallery may therefore be one state ahead of its
counter, and is accepted if that state names the counted one as its predecessor.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedvisage.base.errors import UserError
from fedvisage.base.files import open_regular, sync_directory, write_atomically
from fedvisage.device.gallery.file import Busy, NoRoom
from fedvisage.device.gallery.membership import State

VARIABLE = "FEDVISAGE_GALLERY_COUNTERS"

ACCEPT = "`fedvisage gallery accept-state`"

_LONGEST = 1024
"""Maximum bytes read from a counter; its two lines have fewer."""

_STEP = 0.01
"""Seconds between two attempts to lock the counter."""


class CountedState(NamedTuple):
    """A counted state."""

    number: int
    digest: bytes


def counters_of(key: Path | None, folder: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of counters: the given one, else that of the environment, else the one beside the key."""
    if folder is not None:
        return folder
    if configured := environment.get(VARIABLE):
        return Path(configured)
    if key is not None:
        return key.with_name(f"{key.name}.counters")
    raise UserError("--counters", f"names no folder, and {VARIABLE} is not set; a key from the environment needs one")


class Counter:
    """The counter of one gallery."""

    def __init__(self, folder: Path, gallery: Path, key: bytes, patience: float) -> None:
        """Name the counter of a gallery in a folder.

        The counter is named after the gallery's file and authenticated with a key that only this gallery has. Another
        gallery of the same owner, copied over this one, is therefore refused.
        """
        self.folder, self.path = folder, folder / f"{gallery.name}.counter"
        self._gallery, self._key, self._patience = gallery, key, patience
        self._handle = -1

    def begin(self, mark: CountedState) -> None:
        """Write a new counter, or restart an old one."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path, 2 * self._line(mark))
        except OSError as error:
            raise self._unwritable(error) from None

    def read(self) -> CountedState | None:
        """Return the newest counted state; None if there is no counter."""
        try:
            with open(self.path, "rb", opener=open_regular) as file:
                content = file.read(_LONGEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(str(self._gallery), f"has an unreadable counter {self.path} ({error.strerror})") from None
        marks = [mark for line in content.splitlines()[:2] if (mark := self._parse_line(line)) is not None]
        if not marks:
            raise UserError(
                str(self._gallery),
                f"does not fit its counter {self.path}, which is damaged or belongs to another gallery; restore the "
                f"right one, or accept the file with {ACCEPT}",
            )
        return max(marks)

    def check(self, state: State) -> None:
        """Refuse a gallery whose state is neither the counted one nor its successor."""
        mark = self.read()
        if mark is None:
            raise UserError(
                str(self._gallery),
                f"has no counter {self.path}; restore the folder that was next to the key, or accept the file as it "
                f"is with {ACCEPT}",
            )
        same = mark == (state.number, state.digest)
        successor = state.number == mark.number + 1 and state.previous == mark.digest
        if not same and not successor:
            raise UserError(
                str(self._gallery),
                f"is not the newest copy (change {state.number} of it, the counter is at {mark.number}); restore the "
                f"newest, or accept this one with {ACCEPT}",
            )

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the counter; this checks that it can be written before anything changes."""
        try:
            self._handle = open_regular(str(self.path), os.O_RDWR)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            until = time.monotonic() + self._patience
            while True:
                try:
                    fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        fault = "is locked by another process; try again, or end that process"
                        raise Busy(f"{self._gallery}: {fault}") from None
                    time.sleep(_STEP)
            yield
        finally:
            os.close(self._handle)

    def count(self, state: State) -> None:
        """Record a state as the newest one; the counter must be held."""
        line = self._line(CountedState(state.number, state.digest))
        try:
            os.pwrite(self._handle, line, len(line) * (state.number % 2))
            os.fsync(self._handle)
        except OSError as error:
            raise NoRoom(
                f"{self._gallery}: was changed, but its counter {self.path} cannot be written "
                f"({error.strerror}); free some space, then open the gallery again"
            ) from None

    def remove(self) -> None:
        """Delete the counter."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.folder)

    def _line(self, mark: CountedState) -> bytes:
        content = f"{mark.number:016d} {mark.digest.hex()}"
        return f"{content} {hmac.digest(self._key, content.encode(), 'sha256').hex()}\n".encode()

    def _parse_line(self, line: bytes) -> CountedState | None:
        content, _, sealed = line.rpartition(b" ")
        expected = hmac.digest(self._key, content, "sha256").hex().encode()
        if not hmac.compare_digest(sealed, expected):
            return None
        number, _, digest = content.decode().partition(" ")
        return CountedState(int(number), bytes.fromhex(digest))

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            str(self._gallery),
            f"cannot be changed, because its counter {self.path} cannot be written ({error.strerror}); copy its "
            "folder elsewhere, and give that copy with --counters",
        )
