"""Full disks of the soak: a machine's own, and never the one that everybody uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from campaigns.soak import disks

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "ab") as file:
            file.write(line.encode())
        print("wrote", flush=True)
    except OSError:
        print("failed", flush=True)
"""
"""Writes what it reads; Python ignores SIGXFSZ, so that a file that is too long is an OSError."""


def test_a_disk_that_is_not_a_machines_own_is_never_filled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="own"):
        disks.fill(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_is_full_to_the_last_byte_and_then_empty(tmp_path: Path) -> None:
    place = tmp_path / "machine"
    with disks.disks([place]) as own:
        if not own:
            pytest.skip("no right to mount a file system here")
        (place / "kept").write_bytes(b"1234")
        disks.fill(place)
        with pytest.raises(OSError, match="space"):
            (place / "more").write_bytes(b"1" * 8192)
        (place / "more").unlink(missing_ok=True)
        assert disks.used(place) == 4, "ballast is not the machine's"
        disks.empty(place)
        (place / "more").write_bytes(b"1" * 8192)
        assert disks.used(place) == 4 + 8192
    assert not place.is_mount()


def test_processes_that_are_limited_cannot_write_and_later_can(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WRITER, str(tmp_path / "written")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = []
        for limit in (None, 0, disks.UNLIMITED):
            if limit is not None:
                disks.limit([psutil.Process(process.pid)], limit)
            process.stdin.write("one\n")
            process.stdin.flush()
            said.append(process.stdout.readline().strip())
        process.stdin.close()
    assert said == ["wrote", "failed", "wrote"]
