"""A small disk per machine that can be filled: a file system in memory, where this process may mount one.

Elsewhere the disk is a directory, and while it is full, the machine's processes cannot extend files (RLIMIT_FSIZE).
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
BLOCK = 1 << 20
UNLIMITED = resource.RLIM_INFINITY


@contextmanager
def mount_disks(paths: Iterable[Path]) -> Iterator[bool]:
    """Mount a small file system at each path during the block, and return whether all could be mounted."""
    paths, mounted = list(paths), list[Path]()
    try:
        for path in paths:
            path.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "soak", str(path)]
            if os.geteuid() == 0 and not subprocess.run(command, capture_output=True, check=False).returncode:
                mounted.append(path)
        yield mounted == paths
    finally:
        for path in mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)


def fill(disk: Path) -> None:
    """Fill a machine's disk to the last byte; refuse a directory that is no file system of its own."""
    if not disk.is_mount():
        raise ValueError(f"{disk} is no file system of its own")
    try:
        with (disk / BALLAST).open("wb", buffering=0) as ballast:
            while ballast.write(b"\0" * BLOCK):
                pass
    except OSError:
        return  # the disk is full


def empty(disk: Path) -> None:
    """Remove what :func:`fill` wrote."""
    (disk / BALLAST).unlink(missing_ok=True)


def limit_file_size(processes: Iterable[psutil.Process], size: int = UNLIMITED) -> None:
    """Limit the size of the files that processes write, or remove the limit."""
    for process in processes:
        try:
            process.rlimit(psutil.RLIMIT_FSIZE, (size, process.rlimit(psutil.RLIMIT_FSIZE)[1]))
        except psutil.NoSuchProcess:
            continue


def used_bytes(disk: Path) -> int:
    """Return the total size of a machine's files."""
    total = 0
    for folder, _, names in os.walk(disk):
        for name in names:
            try:
                total += 0 if name == BALLAST else os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
