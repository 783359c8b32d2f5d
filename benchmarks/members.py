"""Complete sites at one server, as processes of this machine: ``python -m benchmarks.members [SITES] [--large]``.

Each site has its own kit, certificate and connection. ``tests/distributed/many_sites.py`` measures members that only
speak the protocol. With ``--large`` they train a ViT-B with a ResNet's stem, and the peak of a run's process stands
beside that of a worker that trains the site in a simulation.
"""

from __future__ import annotations

import argparse
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
from fedvisage.runs.directory import peak_kb
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.checks import Checks
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


def measure(count: int, folder: Path, *, large: bool) -> None:
    """Print the memory of waiting sites and of a run's processes, and the time of its rounds."""
    size, batch = (224, 2) if large else (64, 8)
    path = str(rendered(folder / "cache", "I", 4, size))
    sites = {f"site{number:02d}": path for number in range(count)}
    tree = {
        "method": {"name": "fedavg-vit-h"} if large else {"name": "fedpad", "network": {"width": 8}},
        "data": {"sites": sites},
        "input": {"size": size},
        "training": {"rounds": 3, "local": {"batches": 1}, "batch": batch},
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
        at_site = train(members, recipe, folder, parents)
    if large:
        here = train_here(recipe, folder)
        model = (folder / "run" / "model.safetensors").stat().st_size / 2**20
        added = (at_site - here) / model
        print(f"peak of a run's process at a site {at_site:.0f} MiB, of a worker in one process {here:.0f} MiB")
        print(f"the difference is {added:.2f} times the model of {model:.0f} MiB")


def train_here(recipe: Recipe, folder: Path) -> float:
    """Train with a worker for each site, and return the median of their peaks in MiB."""
    workers = len(recipe.data.sites)
    runtime = recipe.runtime.model_copy(update={"workers": workers})
    peaks, ended, parent = dict[int, int](), threading.Event(), psutil.Process()

    def watch() -> None:
        while not ended.wait(0.1):
            for child in parent.children(recursive=True):
                peaks[child.pid] = max(peaks.get(child.pid, 0), peak_kb(child.pid) or 0)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    out = folder / "here"
    request = Request(
        recipe.model_copy(update={"runtime": runtime}), out, folder / "cache", checks=Checks(allow_overlap=True)
    )
    run(request, Reporter(Console(), quiet=True))
    ended.set()
    watching.join()
    return median(sorted(peaks.values())[-workers:]) / 1024


def train(members: Rehearsal, recipe: Recipe, folder: Path, parents: dict[str, psutil.Process]) -> float:
    """Train, print the largest memory of the run's processes and the time of its rounds, and return the sites' peak."""
    memory, peaks, ended = dict[str, float](), dict[str, int](), threading.Event()

    def watch() -> None:
        while not ended.wait(0.3):
            for name, parent in parents.items():
                children = parent.children(recursive=True)
                memory[name] = max([memory.get(name, 0.0), *memory_of(children)])
                peaks[name] = max([peaks.get(name, 0), *(peak_kb(child.pid) or 0 for child in children)])

    def train_at_sites(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        return operator.train_in_federation(setup.recipe, out, reporter, members.operator, wait=WAIT)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    request = Request(recipe, folder / "run", folder / "cache", training=train_at_sites, opening=open_at_operator)
    run(request, Reporter(Console(), quiet=True))
    ended.set()
    watching.join()
    at_sites = [largest for name, largest in memory.items() if name != "server"]
    print(
        f"memory of a run's process at a site: median {median(at_sites):.0f} MiB, at the server {memory['server']:.0f}"
    )
    seconds = [row["seconds"] for row in read_lines(folder / "run" / ROUNDS)]
    print(f"rounds: {', '.join(f'{each:.1f}' for each in seconds)} s")
    return median(peak for name, peak in peaks.items() if name != "server") / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.members", description=(__doc__ or "").split(":")[0])
    parser.add_argument("sites", nargs="?", type=int, default=20)
    parser.add_argument("--large", action="store_true", help="train a model of 390 MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        measure(options.sites, Path(made), large=options.large)
