"""A disk of its own for each machine, which can be filled up: a small file system in memory, where we may mount one.

Elsewhere it is a directory, and its processes may not make a file longer (RLIMIT_FSIZE) for as long as it is full.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SIZE = "160m"
BALLAST = "ballast"
PIECE = 1 << 20
UNLIMITED = resource.RLIM_INFINITY


@contextmanager
def disks(places: Iterable[Path]) -> Iterator[bool]:
    """Mount a small file system at each place, and say whether each has its own; they are gone afterwards."""
    wanted, mounted = list(places), list[Path]()
    try:
        for place in wanted:
            place.mkdir(parents=True)
            words = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "soak", str(place)]
            if os.geteuid() == 0 and not subprocess.run(words, capture_output=True, check=False).returncode:
                mounted.append(place)
        yield mounted == wanted
    finally:
        for place in mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=False)


def fill(disk: Path) -> None:
    """Take the last byte of a disk; never of one that is not a machine's own."""
    if not disk.is_mount():
        raise ValueError(f"{disk} is no file system of its own")
    try:
        with (disk / BALLAST).open("wb", buffering=0) as ballast:
            while ballast.write(b"\0" * PIECE):
                pass
    except OSError:
        return  # it is full


def empty(disk: Path) -> None:
    """Give the room back."""
    (disk / BALLAST).unlink(missing_ok=True)


def limit(family: Iterable[psutil.Process], bytes_: int = UNLIMITED) -> None:
    """Let processes write no file beyond a length, or any length again."""
    for process in family:
        try:
            process.rlimit(psutil.RLIMIT_FSIZE, (bytes_, process.rlimit(psutil.RLIMIT_FSIZE)[1]))
        except psutil.NoSuchProcess:
            continue


def used(disk: Path) -> int:
    """Return the bytes of all files of a machine."""
    total = 0
    for folder, _, names in os.walk(disk):
        for name in names:
            try:
                total += 0 if name == BALLAST else os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
