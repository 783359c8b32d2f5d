"""What a run loads before its first step: nothing that only draws its report, or that few methods need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = "import fedvisage.runs.run, fedvisage.methods, sys; print(*{name.split('.')[0] for name in sys.modules})"


@pytest.mark.slow
def test_no_step_waits_for_libraries_that_draw_or_solve() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not loaded & {"matplotlib", "sklearn", "scipy"}


INVALID = """
import sys
from multiprocessing import forkserver
from pathlib import Path
from fedvisage.base.errors import UserError
from fedvisage.cli import runs

try:
    runs.run(Path(sys.argv[1]), ["method.name=none", *sys.argv[2:]], allow_overlap=True)
except UserError:
    print(forkserver._forkserver._forkserver_pid is not None)
"""
RECIPE = Path(__file__).parents[2] / "recipes/demo/fedpad.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "expected"), [("2", "True"), ("auto", "True"), ("1", "False"), ("null", "False")])
def test_a_command_with_workers_loads_their_modules_before_it_reads_the_method(workers: str, expected: str) -> None:
    command = [sys.executable, "-c", INVALID, str(RECIPE), f"runtime.workers={workers}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [expected]
