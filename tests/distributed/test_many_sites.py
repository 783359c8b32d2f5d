"""One server carries two hundred sites."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]


def test_server_carries_two_hundred_sites(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.distributed.many_sites", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert steps == [
        "200 sites connected",
        "round 1, 200 replies",
        "round 2, 200 replies",
        "memory of the server",
    ]
