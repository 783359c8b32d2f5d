"""Memory does not grow with the number of sites: peak RSS of 200 sites against 3, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measurement import Measurement, rendered

CHILD = """
import sys
from pathlib import Path
from rich.console import Console
from fedvisage import recipe as recipes
from fedvisage.runs.environment import peak_rss_mb
from fedvisage.methods import read_method
from fedvisage.progress import Reporter
from fedvisage.runs.run import run
count, path, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
tree = {
    "method": {"name": "fedpad"},
    "data": {"sites": {f"site{i:03d}": path for i in range(count)}},
    "input": {"size": 64},
    "training": {"rounds": 1, "local": {"batches": 1}, "batch": 8, "optimizer": {"state": "kept"}},
}
run(recipes.validate(tree, read_method), out, out, Reporter(Console(), quiet=True), allow_overlap=True)
print(peak_rss_mb())
"""


def measure(cache: Path) -> Measurement:
    """Run one round of FedPAD with a kept optimizer, so that every site has private state to put away."""
    few, many = (_peak(count, rendered(cache, "I", 4, 64)) for count in (3, 200))
    return Measurement(
        "peak memory of 200 sites against 3 sites",
        "≤ 1.5",
        f"{many / few:.2f} ({many:.0f} / {few:.0f} MiB)",
        many / few <= 1.5,
    )


def _peak(count: int, path: Path) -> float:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", CHILD, str(count), str(path), out + "/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
