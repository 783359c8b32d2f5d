"""Complete sites at one server, as processes of this machine: ``python -m benchmarks.members [SITES]``.

Each site has its own kit, certificate and connection. ``tests/distributed/many_sites.py`` measures members that only
speak the protocol.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console

from benchmarks.measurement import rendered
from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.methods import read_method
from fedvisage.nvflare import operator
from fedvisage.nvflare.job import open_at_operator
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal
from fedvisage.nvflare.status import status_of
from fedvisage.recipe import Recipe, validate
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

WAIT = 600.0


def memory_of(processes: Sequence[psutil.Process]) -> list[float]:
    """Return the proportional memory of processes in MiB, without those that have ended."""
    memory = []
    for process in processes:
        try:
            memory.append(process.memory_full_info().pss / 2**20)
        except psutil.Error:
            continue
    return memory


def measure(count: int, folder: Path) -> None:
    """Print the memory of waiting sites and of a run's processes, and the time of its rounds."""
    path = str(rendered(folder / "cache", "I", 4, 64))
    sites = {f"site{number:02d}": path for number in range(count)}
    tree = {
        "method": {"name": "fedpad", "network": {"width": 8}},
        "data": {"sites": sites},
        "input": {"size": 64},
        "training": {"rounds": 3, "local": {"batches": 1}, "batch": 8},
        "evaluation": {"every": 0},
        "federation": {"quorum": count, "deadline": WAIT},
        "runtime": {"threads": 1},
    }
    recipe = validate(tree, read_method)
    began = time.monotonic()
    with rehearsal(folder / "federation", sites) as members:
        while len(status_of(members.operator.path, WAIT).sites) < count:
            time.sleep(1)
        parents = {name: psutil.Process(process.pid) for name, process in members.processes.items()}
        print(f"{count} sites connected after {time.monotonic() - began:.0f} s, with the start of their processes")
        waiting = memory_of([process for name, process in parents.items() if name != "server"])
        print(f"memory of a waiting site: median {median(waiting):.0f} MiB, at most {max(waiting):.0f}")
        train(members, recipe, folder, parents)


def train(members: Rehearsal, recipe: Recipe, folder: Path, parents: dict[str, psutil.Process]) -> None:
    """Train, and print the largest memory of the run's processes and the time of its rounds."""
    peaks, ended = dict[str, float](), threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            for name, parent in parents.items():
                memory = memory_of(parent.children(recursive=True))
                peaks[name] = max([peaks.get(name, 0.0), *memory])

    def train_at_sites(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        return operator.train_in_federation(setup.recipe, out, reporter, members.operator, wait=WAIT)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    request = Request(recipe, folder / "run", folder / "cache", training=train_at_sites, opening=open_at_operator)
    run(request, Reporter(Console(), quiet=True))
    ended.set()
    watching.join()
    at_sites = [memory for name, memory in peaks.items() if name != "server"]
    print(
        f"memory of a run's process at a site: median {median(at_sites):.0f} MiB, at the server {peaks['server']:.0f}"
    )
    seconds = [row["seconds"] for row in read_lines(folder / "run" / ROUNDS)]
    print(f"rounds: {', '.join(f'{each:.1f}' for each in seconds)} s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20, Path(made))
