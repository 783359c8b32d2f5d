"""Full disks of the soak: only a machine's own disk is ever filled."""

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
"""Python ignores SIGXFSZ, so that writing beyond the limit is an OSError."""


def test_directory_without_a_file_system_of_its_own_is_never_filled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="own"):
        disks.fill(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_disk_is_filled_to_the_last_byte_and_emptied(tmp_path: Path) -> None:
    disk = tmp_path / "machine"
    with disks.mount_disks([disk]) as mounted:
        if not mounted:
            pytest.skip("no right to mount a file system here")
        (disk / "kept").write_bytes(b"1234")
        disks.fill(disk)
        with pytest.raises(OSError, match="space"):
            (disk / "more").write_bytes(b"1" * 8192)
        (disk / "more").unlink(missing_ok=True)
        assert disks.used_bytes(disk) == 4, "ballast is not the machine's"
        disks.empty(disk)
        (disk / "more").write_bytes(b"1" * 8192)
        assert disks.used_bytes(disk) == 4 + 8192
    assert not disk.is_mount()


def test_limited_processes_cannot_write_until_the_limit_is_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        output = []
        for limit in (None, 0, disks.UNLIMITED):
            if limit is not None:
                disks.limit_file_size([psutil.Process(process.pid)], limit)
            process.stdin.write("line\n")
            process.stdin.flush()
            output.append(process.stdout.readline().strip())
        process.stdin.close()
    assert output == ["wrote", "failed", "wrote"]
