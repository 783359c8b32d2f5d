"""Workers of a Ray cluster against local workers, as ratios: ``python -m benchmarks ray --address HOST:PORT``.

docs/scale.md starts a cluster. Both kinds of workers are measured in turn in one run, because a shared machine varies.
"""

from __future__ import annotations

import argparse
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
from rich.console import Console

from benchmarks.measurement import in_turn
from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.federation.wire.message import Message, Reply
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe, load
from fedvisage.runs.cluster import Cluster, prepare_ray
from fedvisage.runs.engine import Engine, LocalEngine, Worker
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.studies.shipped import locate

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
        "data.sites={A: 'synth: O subjects=8', B: 'synth: C subjects=8', C: 'synth: M subjects=8', "
        "D: 'synth: I subjects=8'}",
        *("training.rounds=6", "training.local={batches: 12}", "evaluation.every=0", "runtime.threads=1"),
        "runtime.workers=2",
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


def main(words: Sequence[str]) -> int:
    """Measure visits and sites."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ray", description=__doc__)
    parser.add_argument("--address", help="HOST:PORT of the head node")
    cluster = Cluster(parser.parse_args(words).address)
    prepare_ray()
    from fedvisage.runs.ray_engine import RayEngine

    with TemporaryDirectory() as folder, ExitStack() as stack:
        engines: list[Any] = [LocalEngine(Path(folder) / "workers"), RayEngine(cluster, "benchmark", print)]
        for engine in engines:
            stack.enter_context(closing(engine))
        measure_visits(engines)
        stack.close()
        measure_sites(cluster, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
