"""How processor time and memory grow with sites, images and rounds, each with its exponent: 1 is linear, 0 constant.

Every point is a process of its own. The sites are parts of one set, and share no picture.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.measurement import Measurement
from fedvisage import recipe as recipes
from fedvisage.base.progress import Reporter, discard
from fedvisage.data.overlap import find_overlap
from fedvisage.data.writer import Writer
from fedvisage.methods import METHODS, read_method
from fedvisage.recipe import Recipe
from fedvisage.runs.directory import peak_kb
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.pad.task import open_data

SITES, IMAGES, ROUNDS = (3, 10, 30, 100, 300, 1000), (1_000, 10_000, 100_000), (10, 100, 1000)
SIZE, KINDS, FRAMES = 16, 10, 2
OPENED_IN, MEMORY = 30.0, 1.5
"""Bounds for 1,000 sites over 100,000 images: processor seconds to open, and memory against three sites."""


def measure_sites(cache: Path) -> Measurement:
    """Open 100,000 images as more and more sites."""
    points = [_measure("open", sites, IMAGES[-1], cache) for sites in SITES]
    (*_, (seconds, most)), (_, least) = points, points[0]
    return Measurement(
        f"opening {IMAGES[-1]:,} images as {_list(SITES)} sites: processor time, memory",
        f"≤ {OPENED_IN:.0f} s; ≤ {MEMORY} × that of {SITES[0]}",
        _text(SITES, points),
        seconds <= OPENED_IN and most <= MEMORY * least,
    )


def measure_images(cache: Path) -> Measurement:
    """Open more and more images as ten sites."""
    points = [_measure("open", 10, images, cache) for images in IMAGES]
    bound = "exponent of time ≤ 1.1"
    claim = f"opening {_list(IMAGES)} images as 10 sites: processor time, memory"
    return Measurement(claim, bound, _text(IMAGES, points), _exponent(IMAGES, points) <= 1.1)


def measure_rounds(cache: Path) -> Measurement:
    """Train three sites for more and more rounds of one batch."""
    points = [_measure("train", 3, rounds, cache) for rounds in ROUNDS]
    claim = f"training three sites for {_list(ROUNDS)} rounds of one batch: processor time, memory"
    return Measurement(claim, "exponent of time ≤ 1.1", _text(ROUNDS, points), _exponent(ROUNDS, points) <= 1.1)


def measure_site_round(cache: Path) -> Measurement:
    """Train more and more sites for two rounds of one batch."""
    points = [_measure("train_sites", sites, 2, cache) for sites in SITES]
    each = [(seconds / sites / 2, megabytes) for sites, (seconds, megabytes) in zip(SITES, points, strict=True)]
    claim = f"one batch of a site in a federation of {_list(SITES)}: processor time, memory"
    return Measurement(claim, "exponent of time ≤ 0.1", _text(SITES, each), _exponent(SITES, each) <= 0.1)


Points = Sequence[tuple[float, float]]
"""Processor seconds and megabytes."""


def _text(counts: Sequence[int], points: Points) -> str:
    seconds, megabytes = zip(*points, strict=True)
    times = ", ".join(f"{value:.3g}" for value in seconds)
    sizes = ", ".join(f"{value:.0f}" for value in megabytes)
    return f"{times} s (exponent {_exponent(counts, points):.2f}); {sizes} MB"


def _list(counts: Sequence[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)


def _exponent(counts: Sequence[int], points: Points) -> float:
    """Return the slope of the least-squares line through logarithms of time over logarithms of count."""
    slope, _ = np.polyfit(np.log(counts), np.log([seconds for seconds, _ in points]), 1)
    return float(slope)


def _measure(*words: object) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.growth", *map(str, words)]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    seconds, megabytes = json.loads(output.splitlines()[-1])
    return seconds, megabytes


def crowd(cache: Path, images: int) -> Path:
    """Return a set of noise with 40 images per person: ten videos bona fide, and one of each of ten attacks."""
    path, rng = cache / f"crowd-{images}", np.random.default_rng(0)
    if path.exists():
        return path
    with Writer(path, name="crowd", size=SIZE, source="noise") as out:
        for person in range(images // (2 * KINDS * FRAMES)):
            for label, kind in ((label, kind) for label in (1, 0) for kind in range(KINDS)):
                video = f"{person}/{label}/{kind}"
                out.add(
                    rng.integers(0, 256, (FRAMES, SIZE, SIZE, 3), dtype=np.uint8),
                    label=[label] * FRAMES,
                    species=["bonafide" if label else f"print{kind}"] * FRAMES,
                    subject=[f"{person}"] * FRAMES,
                    video=[video] * FRAMES,
                    frame=list(range(FRAMES)),
                    split=["train" if person % 2 else "heldout"] * FRAMES,
                    item=[f"{video}/{frame}.png" for frame in range(FRAMES)],
                )
    return path


def _recipe(path: Path, sites: int, rounds: int) -> Recipe:
    """Divide a set among sites: by people up to 100 sites, then also by attacks and bona fide videos."""
    columns = min(sites, 100)
    kinds = -(-sites // columns)
    entries = {}
    for number in range(sites):
        column, kind = divmod(number, kinds)
        people = f"subjects={100 * column // columns}-{100 * (column + 1) // columns}"
        attacks = ",".join(f"print{other}" for other in range(kind, KINDS, kinds))
        entries[f"S{number}"] = f"{path} only: {people} attacks={attacks} bonafide={kind + 1}/{kinds} by=videos"
    tree = {
        "method": {"name": "fedpad", "network": {"width": 8}},
        "data": {"sites": entries},
        "input": {"size": SIZE},
        "training": {"rounds": rounds, "batch": 8, "local": {"batches": 1}},
        "evaluation": {"every": 0, "resamples": 0},
        "runtime": {"precision": "fp32", "threads": 1},
    }
    return recipes.validate(tree, read_method)


def _open(sites: int, images: int, cache: Path) -> float:
    recipe = _recipe(crowd(cache, images), sites, 1)
    began = time.process_time()
    find_overlap(open_data(recipe, METHODS["fedpad"], cache, discard).places, cache)
    return time.process_time() - began


def _train(sites: int, rounds: int, cache: Path, images: int) -> float:
    """Return the difference between a run and one of a single round, so that fixed costs are not in it."""
    path, seconds = crowd(cache, images), list[float]()
    reporter = Reporter(Console(quiet=True), quiet=True)
    for number in (1, 1, rounds + 1):  # the first one loads modules
        out = cache / f"run-{sites}-{rounds}-{len(seconds)}"
        began = time.process_time()
        run(Request(_recipe(path, sites, number), out, cache, report=False), reporter)
        seconds.append(time.process_time() - began)
    return seconds[-1] - seconds[1]


def _main(what: str, sites: str, count: str, cache: str) -> None:
    if what == "open":
        seconds = _open(int(sites), int(count), Path(cache))
    else:
        images = IMAGES[-1] if what == "train_sites" else 4_000
        seconds = _train(int(sites), int(count), Path(cache), images)
    print(json.dumps([seconds, (peak_kb() or 0) / 1024]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
