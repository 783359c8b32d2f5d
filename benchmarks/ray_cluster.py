"""Workers of a Ray cluster against local workers, as ratios: ``python -m benchmarks ray --address HOST:PORT``.

docs/scale.md starts a cluster. Both kinds of workers are measured in turn in one run, because a shared machine varies.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from rich.console import Console

from benchmarks.measurement import in_turn, rendered
from fedvisage.base.progress import Reporter, discard
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.federation.wire.message import Message, Reply
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe, load, validate
from fedvisage.runs.cluster import Cluster, prepare_ray
from fedvisage.runs.engine import Engine, LocalEngine, Worker
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.studies.conduct import run_study
from fedvisage.studies.shipped import locate
from fedvisage.tasks.checks import Checks

VISITS = {"1 kB": 1_000, "12 MB": 12_000_000, "100 MB": 100_000_000}
BOUNDS = {"1 kB": 6.0, "12 MB": 1.2, "100 MB": 1.2}
REPEATS = 7


def answer(message: Message) -> Reply:
    """Return a message of the same size, as a site that trains a network does."""
    return Reply("site", {name: value + 1 for name, value in message.items()})


def visit(engine: Engine, worker: Worker, message: Message) -> float:
    """Return the seconds in which a message reaches a worker, and the reply is in this process's memory."""
    began = time.perf_counter()
    reply = worker.submit(answer, engine.put(message)).result()
    assert reply.message is not None
    assert torch.equal(reply.message["weights"].clone()[:1], message["weights"][:1] + 1)
    return time.perf_counter() - began


def measure_visits(engines: Sequence[Engine]) -> None:
    """Print the median seconds of visits at local and at Ray workers, and their ratio."""
    workers = [engine.start(1, 1, "cpu")[0] for engine in engines]
    for size, count in VISITS.items():
        message = {"weights": torch.zeros(count // 4)}
        works = [partial(visit, engine, worker, message) for engine, worker in zip(engines, workers, strict=True)]
        for work in works:
            work()  # imports, and the first memory of this size
        local, ray = map(median, in_turn(REPEATS, *works))
        verdict = "holds" if ray / local <= BOUNDS[size] else "does not hold"
        print(
            f"visit of {size}: local {1000 * local:.1f} ms, Ray {1000 * ray:.1f} ms, ratio {ray / local:.2f} "
            f"(at most {BOUNDS[size]:g}: {verdict})"
        )


def seconds_of_rounds(recipe: Recipe, out: Path, engine: Engine | None) -> float:
    """Train, and return the median seconds of a round without the first."""
    run(Request(recipe, out, out.parent / "cache", engine=engine), Reporter(Console(), quiet=True))
    return float(median(row["seconds"] for row in read_lines(out / ROUNDS)[1:]))


def measure_sites(cluster: Cluster, folder: Path) -> None:
    """Print the speed of four sites at two workers of the cluster against two local workers."""
    from fedvisage.runs.ray_engine import RayEngine

    changes = [
        *(f"data.sites.{site}='synth: {site} subjects=8 size=96'" for site in "OCIM"),
        *("training.rounds=6", "training.local={batches: 12}", "evaluation.every=0", "runtime.threads=1"),
        *("runtime.workers=2", "data.target=null", "data.target_name=none"),
        "evaluation.features=0",
    ]
    recipe = load(locate(Path("demo/fedpad"), verb="run"), changes, read_method)
    local = seconds_of_rounds(recipe, folder / "local", None)
    with closing(RayEngine(cluster, "benchmark", print)) as engine:
        ray = seconds_of_rounds(recipe, folder / "ray", engine)
    ratio = local / ray
    print(
        f"four sites at two workers: round {local:.2f} s local, {ray:.2f} s on Ray, speed {ratio:.2f} "
        f"(at least 0.9: {'holds' if ratio >= 0.9 else 'does not hold'})"
    )


def measure_cells(cluster: Cluster, folder: Path) -> None:
    """Print the speed of a study of eight cells at two cores of the cluster against two local processes."""
    path = folder / "study.yaml"
    sites = {name: f"synth: {name} subjects=8" for name in ("O", "C", "M", "U")}
    grid = {
        "title": "Eight cells",
        "recipe": {
            "method": {"name": "fedpad", "network": {"width": 16}},
            "input": {"size": 64},
            "training": {"rounds": 2, "local": {"batches": 24}, "batch": 16},
            "runtime": {"threads": 1},
            "evaluation": {"every": 0, "resamples": 0, "features": 0},
        },
        "sets": {name: f"{entry.replace('U', 'I')} size=64" for name, entry in sites.items()},
        "targets": ["U"],
        "rows": {"FedPAD": {}},
        "seeds": list(range(8)),
    }
    path.write_text(yaml.safe_dump(grid), encoding="utf-8")
    seconds = []
    for name, options in (("here", {"workers": 2}), ("on-ray", {"cluster": cluster})):
        began = time.perf_counter()
        run_study(path, folder / name, folder / "cache", discard, **options)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - began)
    ratio = seconds[0] / seconds[1]
    print(
        f"eight cells of a study: {seconds[0]:.0f} s local, {seconds[1]:.0f} s on Ray, speed {ratio:.2f} "
        f"(at least 0.95: {'holds' if ratio >= 0.95 else 'does not hold'})"
    )


MANY_SITES = """
import json, sys, threading
from contextlib import closing
from pathlib import Path
import psutil
from rich.console import Console
from benchmarks.ray_cluster import recipe_of_sites
from fedvisage.base.progress import Reporter, discard
from fedvisage.runs.cluster import Cluster, prepare_ray
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.checks import Checks
count, width, path, out, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5]
prepare_ray()
from fedvisage.runs.ray_engine import RayEngine
peak, ended, own = [0], threading.Event(), psutil.Process()
def watch():
    while not ended.wait(0.05):
        peak[0] = max(peak[0], own.memory_full_info().uss)
watching = threading.Thread(target=watch, daemon=True)
watching.start()
with closing(RayEngine(Cluster(address), "memory", discard)) as engine:
    recipe, cache = recipe_of_sites(count, width, path), out.parent / "cache"
    request = Request(recipe, out, cache, checks=Checks(allow_overlap=True), engine=engine)
    run(request, Reporter(Console(), quiet=True))
ended.set()
watching.join()
rounds = [json.loads(line)["seconds"] for line in (out / "rounds.jsonl").read_text().splitlines()]
print(peak[0] / 2**20, min(rounds))
"""
"""Train on the cluster and print the largest private memory of the driver in MiB, and the seconds of a round."""


def recipe_of_sites(count: int, width: int, path: str) -> Recipe:
    """Return two rounds of one batch at each of many sites with the same small set."""
    tree = {
        "method": {"name": "fedpad", "network": {"width": width}},
        "data": {"sites": {f"site{number:04d}": path for number in range(count)}},
        "input": {"size": 64},
        "training": {"rounds": 2, "local": {"batches": 1}, "batch": 8},
        "evaluation": {"every": 0},
        "runtime": {"threads": 1, "workers": 2},
    }
    return validate(tree, read_method)


def train_many_sites(cluster: Cluster, folder: Path, count: int, width: int) -> tuple[float, float]:
    """Train in a process of its own, and return the driver's peak of private memory in MiB, and seconds of a round."""
    words = [str(count), str(width), light_set(folder), str(folder / f"{count}-{width}"), cluster.address or ""]
    done = subprocess.run([sys.executable, "-c", MANY_SITES, *words], capture_output=True, text=True, check=True)
    memory, seconds = map(float, done.stdout.split()[-2:])
    return memory, seconds


def light_set(folder: Path) -> str:
    """Return the set that all sites share."""
    return str(rendered(folder / "cache", "I", 4, 64))


def measure_memory(cluster: Cluster, folder: Path) -> None:
    """Print the driver's memory at 200 sites of ResNet-18 against three."""
    few, many = (train_many_sites(cluster, folder, count, 64) for count in (3, 200))
    ratio = many[0] / few[0]
    print(
        f"driver's private memory at 200 sites of 44 MB against 3: {ratio:.2f} ({many[0]:.0f}, {few[0]:.0f} MiB; at "
        f"most 1.3: {'holds' if ratio <= 1.3 else 'does not hold'}); rounds of {many[1]:.1f} and {few[1]:.1f} s"
    )


def measure_light_sites(cluster: Cluster, folder: Path) -> None:
    """Print the time of a round of 500 sites with a small network, on the cluster and with local workers."""
    memory, on_ray = train_many_sites(cluster, folder, 500, 8)
    recipe, out = recipe_of_sites(500, 8, light_set(folder)), folder / "light"
    run(Request(recipe, out, folder / "cache", checks=Checks(allow_overlap=True)), Reporter(Console(), quiet=True))
    here = min(row["seconds"] for row in read_lines(out / ROUNDS))
    print(
        f"500 light sites at two workers: round {here:.1f} s local, {on_ray:.1f} s on Ray, ratio {on_ray / here:.2f}; "
        f"driver {memory:.0f} MiB"
    )


MEASUREMENTS = {
    "sites": measure_sites,
    "cells": measure_cells,
    "memory": measure_memory,
    "light": measure_light_sites,
}


def main(words: Sequence[str]) -> int:
    """Measure what the words name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ray", description=__doc__)
    parser.add_argument("--address", help="HOST:PORT of the head node")
    parser.add_argument("--only", nargs="+", choices=["visits", *MEASUREMENTS], default=["visits", *MEASUREMENTS])
    asked = parser.parse_args(words)
    cluster = Cluster(asked.address)
    prepare_ray()
    from fedvisage.runs.ray_engine import RayEngine

    with TemporaryDirectory() as folder, ExitStack() as stack:
        if "visits" in asked.only:
            engines: list[Any] = [LocalEngine(Path(folder) / "workers"), RayEngine(cluster, "benchmark", print)]
            for engine in engines:
                stack.enter_context(closing(engine))
            measure_visits(engines)
            stack.close()
        for name in [name for name in MEASUREMENTS if name in asked.only]:
            MEASUREMENTS[name](cluster, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
