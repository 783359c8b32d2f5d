"""Whole runs as users start them: worker processes against one, what is not training, and memory.

Each run is a process of its own, of one thread (each), with its sets rendered and its first model trained before.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measurement import Measurement, rendered
from fedvisage.base.processes import cores

REPEATS = 2
"""How often shorter runs are timed."""
LITTLE = ("training.rounds=1", "training.local={batches: 1}")
RATIO, UNEVEN, FIXED, GROWTH = 1.7, 1.45, 3.0, 1.5
"""Bounds; two workers gain at most 1.5 from three equal sites, of which one works alone."""
BATCHES = 24

CHILD = """
import json, sys, time
from pathlib import Path
from rich.console import Console
from fedvisage.base.progress import Reporter
from fedvisage.cli import runs

class Timing(Reporter):
    '''Records when the first batch began, and when each round ended.'''
    first, rounds = None, None
    def batch(self, site, done, of):
        self.first = self.first or time.time()
    def ended_round(self, row, total):
        self.rounds = time.time()

path, out, cache, *changes = sys.argv[1:]
timing = Timing(Console(), quiet=True)
runs.reporter = lambda quiet, log_format: timing
runs.run(Path(path), changes, out=Path(out), cache=Path(cache), allow_overlap=True)
metrics = json.loads((Path(out) / "metrics.json").read_text())
print(json.dumps({"first": timing.first, "last": timing.rounds, "end": time.time(), "mib": metrics["peak_rss_mb"]}))
"""


@dataclass(frozen=True)
class Whole:
    """Seconds of a run from the start of its process, and the most memory of all its processes together."""

    seconds: float
    until_first_step: float
    after_last_round: float
    mib: float


def measure_fedpad(cache: Path) -> Measurement:
    """Three equal sites: two of them share a process where there are two, and three processes share two cores."""
    return _side_by_side(cache, "fedpad", 3, ("1", "2", "auto"), least=UNEVEN)


def measure_fedpad_of_four(cache: Path) -> Measurement:
    """Four equal sites, so that both of two processes have the same work; two sites have the same set."""
    fourth = "data.sites.fourth='synth: O subjects=24 frames=2 size=96'"
    return _side_by_side(cache, "fedpad", 4, ("1", "2"), fourth)


def measure_fedfr(cache: Path) -> Measurement:
    """Six sites, whose public people are learnt from before the first round, in one process."""
    return _side_by_side(cache, "fedfr", 6, ("1", "2"))


def _side_by_side(
    cache: Path, name: str, sites: int, ways: tuple[str, ...], *changes: str, least: float = RATIO
) -> Measurement:
    """Run a demo, each way once: the row is for an idle machine, and runs are long."""
    recipe = Path("recipes/demo") / f"{name}.yaml"
    _made(cache, recipe)
    seconds = [_run(cache, recipe, f"runtime.workers={way}", *changes).seconds for way in ways]
    two = seconds[0] / seconds[1]
    said = ", ".join(f"{way}: {found:.1f} s" for way, found in zip(ways, seconds, strict=True))
    return Measurement(
        f"wall time of the demo's {name}, {sites} sites, 2 workers against 1, one thread each",
        f"≥ {least:g}",
        f"{two:.2f} ({said}; {cores()} cores; one run each)",
        two >= least if cores() > 1 else None,
    )


def measure_fixed(cache: Path) -> Measurement:
    """From the start of the process to the first batch, and from the last round's line to the end of the report."""
    recipe = Path("recipes/demo/fedpad.yaml")
    _made(cache, recipe)
    found = [[_run(cache, recipe, *LITTLE, f"runtime.workers={way}") for _ in range(REPEATS)] for way in ("1", "2")]
    costs = [
        [median(getattr(run, what) for run in runs) for what in ("until_first_step", "after_last_round")]
        for runs in found
    ]
    return Measurement(
        "fixed cost of a run at demo size: start to first step; last round to report",
        f"each ≤ {FIXED:g} s",
        "; ".join(
            f"{way}: {first:.1f} s, {last:.1f} s"
            for way, (first, last) in zip(("one process", "2 workers"), costs, strict=True)
        ),
        all(cost <= FIXED for pair in costs for cost in pair),
    )


def measure_rest(cache: Path) -> Measurement:
    """One round of FedPAD at 50 sites, beside the same without all but a batch of training at each site."""
    path = _many(cache, 50)
    little, much = (_run(cache, path, f"training.local={{batches: {count}}}").seconds for count in (1, BATCHES))
    training = (much - little) * BATCHES / (BATCHES - 1)
    rest = much - training
    return Measurement(
        f"a run of one round at 50 sites, {BATCHES} batches of 8 each: what is not training",
        "≤ 1 × training",
        f"{rest / training:.2f} ({rest:.1f} s beside {training:.1f} s)",
        rest <= training,
    )


def measure_memory(cache: Path) -> Measurement:
    """All processes of a run together, at 200 sites and at 3; every site has private state."""
    few, many = (_run(cache, _many(cache, count), "runtime.workers=2").mib for count in (3, 200))
    return Measurement(
        "peak memory of 200 sites against 3 sites, 2 workers, all processes together",
        f"≤ {GROWTH:g}",
        f"{many / few:.2f} ({many:.0f} / {few:.0f} MiB)",
        many / few <= GROWTH,
    )


@functools.cache
def _made(cache: Path, recipe: Path) -> None:
    """Render a recipe's sets and train its first model, which later runs find."""
    _run(cache, recipe, *LITTLE)


def _many(cache: Path, count: int) -> Path:
    """Write a recipe of so many sites, each with the same small set."""
    tree: dict[str, Any] = {
        "method": {"name": "fedpad"},
        "data": {"sites": {f"site{number:03d}": str(rendered(cache, "I", 4, 64)) for number in range(count)}},
        "input": {"size": 64},
        "training": {"rounds": 1, "local": {"batches": 1}, "batch": 8, "optimizer": {"state": "kept"}},
    }
    path = cache / f"{count}-sites.yaml"
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path


def _run(cache: Path, recipe: Path, *changes: str) -> Whole:
    """Run a recipe in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-c", CHILD, str(recipe), f"{out}/run", str(cache), "runtime.threads=1", *changes]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return Whole(told["end"] - began, told["first"] - began, told["end"] - told["last"], told["mib"])
