"""Libraries that a run loads before its first step."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedvisage.base.parallel import FORK_SERVER
from fedvisage.base.processes import cores

CHILD = "import fedvisage.runs.run, fedvisage.methods, sys; print(*{name.split('.')[0] for name in sys.modules})"


@pytest.mark.slow
def test_run_module_loads_no_plotting_or_solver_libraries() -> None:
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split())
    assert "torch" in loaded
    assert not loaded & {"matplotlib", "sklearn", "scipy"}


INVALID = """
import sys
from multiprocessing import forkserver
from fedvisage.base.errors import UserError
from fedvisage.cli import app

def report(start=forkserver.ensure_running):
    print("torch" in sys.modules)
    start()

forkserver.ensure_running = report
try:
    app(["run", sys.argv[1], "method.name=none", *sys.argv[2:], "--allow-overlap"], standalone_mode=False)
except UserError:
    assert "torch" in sys.modules
"""
RECIPE = Path(__file__).parents[2] / "recipes/demo/fedpad.yaml"


@pytest.mark.slow
@pytest.mark.skipif(cores() == 1 or not FORK_SERVER, reason="needs two cores and a fork server")
@pytest.mark.parametrize(("workers", "started"), [("2", ["False"]), ("auto", ["False"]), ("1", []), ("null", [])])
def test_run_with_workers_starts_the_fork_server_before_it_loads_torch(workers: str, started: list[str]) -> None:
    command = [sys.executable, "-c", INVALID, str(RECIPE), f"runtime.workers={workers}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == started
