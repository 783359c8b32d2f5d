"""FedAvg beside Flower's simulation: the same network, sites, images and batches. Flower trains in fp32.

Flower is not a dependency of the package: install ``flwr[simulation]`` beside it to measure this row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.measurement import Measurement, in_turn, rendered
from fedvisage import recipe as recipes
from fedvisage.base.progress import Reporter
from fedvisage.methods import read_method
from fedvisage.runs.request import Request
from fedvisage.runs.run import run

DOMAINS, REPEATS, ROUNDS = ("O", "C", "I"), 3, 4
WORK = {"size": 64, "batch": 32, "batches": 12, "width": 32}
TINY, TINY_ROUNDS = {"size": 32, "batch": 8, "batches": 1, "width": 8}, 20


def measure(cache: Path) -> Measurement:
    """Compare throughput, a whole job, and a site's round of one small batch."""
    claim = (
        "FedAvg of three sites against Flower's simulation: images a second of processor time in fp32, in bf16, and of "
        f"Flower; processor time of a job of {ROUNDS} rounds; processor time of a site's round of one small batch in "
        "fp32, and of Flower"
    )
    bound = "bf16 ≥ 2 × Flower's images; site-round ≤ 1/9 of Flower's"
    if find_spec("flwr") is None or find_spec("ray") is None:
        return Measurement(claim, bound, "flwr[simulation] is not installed", None)
    points = [("work", rounds, who) for rounds in (1, ROUNDS) for who in ("fp32", "bf16", "flower")]
    points += [("tiny", rounds, who) for rounds in (1, TINY_ROUNDS) for who in ("fp32", "flower")]
    columns = in_turn(REPEATS, *(_job(*point, cache) for point in points))
    seconds = {point: median(values) for point, values in zip(points, columns, strict=True)}
    images = len(DOMAINS) * (ROUNDS - 1) * WORK["batch"] * WORK["batches"]
    whole = {who: seconds["work", ROUNDS, who] for who in ("fp32", "bf16", "flower")}
    rates = {who: images / (whole[who] - seconds["work", 1, who]) for who in whole}
    tiny = {
        who: 1000 * (seconds["tiny", TINY_ROUNDS, who] - seconds["tiny", 1, who]) / (TINY_ROUNDS - 1) / len(DOMAINS)
        for who in ("fp32", "flower")
    }
    return Measurement(
        claim,
        bound,
        f"{', '.join(f'{rate:.0f}' for rate in rates.values())} images/s; "
        f"{', '.join(f'{value:.1f}' for value in whole.values())} s; "
        f"{', '.join(f'{value:.1f}' for value in tiny.values())} ms (medians of {REPEATS})",
        rates["bf16"] >= 2 * rates["flower"] and 9 * tiny["fp32"] <= tiny["flower"],
    )


def _job(what: str, rounds: int, who: str, cache: Path) -> Callable[[], float]:
    settings = {"work": WORK, "tiny": TINY}[what]
    paths = [str(rendered(cache, name, 8, settings["size"])) for name in DOMAINS]
    job: list[Any] = [rounds, *(settings[name] for name in ("size", "batch", "batches", "width")), *paths]
    if who == "flower":
        return partial(_seconds_of, "from benchmarks.flower_program import simulate; simulate()", job)
    return partial(_seconds_of, f"from benchmarks.flower import train; train({who!r})", job)


def _seconds_of(code: str, job: list[Any]) -> float:
    """Run a job in a process of its own, and return the processor time that it prints."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = os.environ | quiet | {"FLOWER_JOB": json.dumps(job)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment)
    return next(float(line) for line in done.stdout.splitlines() if line.replace(".", "").isdigit())


def train(precision: str) -> None:
    """Train with FedAvg in this process, and print its processor time, which includes its start."""
    rounds, size, batch, batches, width, *paths = json.loads(os.environ["FLOWER_JOB"])
    sites = dict(zip(DOMAINS, paths, strict=True))
    tree = {
        "method": {"name": "fedpad", "network": {"width": width}},
        "data": {"sites": sites},
        "input": {"size": size, "colour": "rgb"},
        "training": {"rounds": rounds, "batch": batch, "local": {"batches": batches}, "augment": {}},
        "evaluation": {"every": 0, "resamples": 0},
        "runtime": {"precision": precision, "threads": 1},
    }
    out = Path(sites["O"]).parent / f"flower-{time.time_ns()}"
    recipe = recipes.validate(tree, read_method)
    run(Request(recipe, out, out.parent, report=False), Reporter(Console(quiet=True), quiet=True))
    print(json.dumps(time.process_time()))
