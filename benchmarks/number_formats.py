"""Figures of every method after training in bf16 and in fp32, at demo size, over seeds.

    python -m benchmarks.number_formats OUT [--methods fedpad fedfr ...] [--seeds 0 1 2] [--short]

runs each method in both number formats, in directories of OUT, and prints a table. Finished runs are not repeated, so
an interrupted command continues; all methods take hours. A method passes if the means of both formats differ by no more
than the larger standard deviation over the seeds. Rendered sets are made in OUT on first use. ``--short`` takes smaller
images, fewer people and fewer rounds, for about a minute per run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.base.progress import Reporter
from fedvisage.methods import METHODS, read_method
from fedvisage.metrics.recorded import Metrics
from fedvisage.recipe import Recipe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.studies.study import value_of

DEMO = Path(__file__).parents[1] / "recipes/demo"
FORMATS = ("fp32", "bf16")
FIGURES = {"pad": ("HTER", "hter"), "recognition": ("TAR", "generic.tar@1e-3")}
"""The figure of each task: its name in the table, and its key in the metrics."""
BASES = {
    "vit": "fedavg-vit-h",
    "pad": "fedpad",
    "privacyface": "privacyface",
    "without noise": "privacyface-without-noise",
    "recognition": "fedfr",
}
"""The demo recipe from which a method without its own one takes its data and training."""
CHANGES = {name: ["training.optimizer={name: sgd, lr: 0.05}"] for name in ("scaffold", "fednova")}
"""Settings that a method needs beside those of its base recipe."""
SMALLER = {
    "subjects=24": "subjects=16",
    "size=96": "size=64",
    "size=48": "size=32",
    "images=20": "images=10",
    "identities=256": "identities=128",
    "identities=200": "identities=100",
}
"""Replacements in the data of short runs."""
FEWER_EPOCHS, FEWER_BATCHES = 4, 30
"""Maximum number of rounds of short runs: of recipes whose rounds have epochs, and of those with batches."""


def main() -> None:
    """Run the methods in both formats and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.number_formats")
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("--methods", nargs="*", choices=sorted(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--short", action="store_true", help="smaller images, fewer people and fewer rounds")
    options = parser.parse_args()
    print("| method | figure | fp32 | bf16 | difference | passes |\n|---|---|---:|---:|---:|---|")
    for method in options.methods:
        print(compare_formats(method, options.seeds, options.out, short=options.short), flush=True)


def compare_formats(method: str, seeds: Sequence[int], out: Path, *, short: bool = False) -> str:
    """Run a method with each seed in both formats, and return its row of the table."""
    (label, figure), values = FIGURES[METHODS[method].task], dict[str, list[float]]()
    for number_format in FORMATS:
        runs = {seed: out / f"{method}-{number_format}-{seed}" for seed in seeds}
        metrics = [run_recipe(recipe_of(method, number_format, seed, short=short), runs[seed]) for seed in seeds]
        figures = [value_of(of_seed, figure) for of_seed in metrics]
        values[number_format] = [100 * value for value in figures if value is not None]
    spread = {name: stdev(of_seeds) if len(of_seeds) > 1 else 0.0 for name, of_seeds in values.items()}
    difference = fmean(values["bf16"]) - fmean(values["fp32"])
    cells = [f"{fmean(values[name]):.1f} ± {spread[name]:.1f}" for name in FORMATS]
    verdict = "yes" if abs(difference) <= max(spread.values()) else "**no**"
    return f"| {method} | {label} | {' | '.join(cells)} | {difference:+.1f} | {verdict} |"


def run_recipe(recipe: Recipe, out: Path) -> Metrics:
    """Run a recipe, or continue its run, and return its metrics."""
    return run(Request(recipe, out, out.parent / "cache", resume=True), Reporter(Console(), quiet=True))


def recipe_of(method: str, number_format: str, seed: int, *, short: bool = False) -> Recipe:
    """Return a method's recipe at demo size: its own, or that of a related method with its options."""
    trees = map(_read_demo, sorted(DEMO.glob("*.yaml")))
    own = {tree["method"]["name"]: tree for tree in trees if "model" not in tree["method"]}
    if method in own:
        tree = own[method]
    else:
        tree = _read_demo(DEMO / f"{BASES[_base_of(method)]}.yaml")
        known = METHODS[method].options.model_fields
        tree["method"] = {key: value for key, value in tree["method"].items() if key in known} | {"name": method}
    if short:
        shorten(tree)
    changes = [f"runtime.precision={number_format}", f"runtime.seed={seed}", "evaluation.features=0"]
    for change in [*changes, *CHANGES.get(method, [])]:
        recipes.apply_override(tree, change)
    return recipes.validate(tree, read_method)


def shorten(tree: dict[str, Any]) -> None:
    """Make a demo recipe's images, sets and training smaller."""
    text = json.dumps(tree["data"])
    for entry, smaller in SMALLER.items():
        text = text.replace(entry, smaller)
    training = tree["training"]
    rounds = FEWER_EPOCHS if "epochs" in training.get("local", {"epochs": 1}) else FEWER_BATCHES
    training["rounds"] = min(training["rounds"], rounds)
    if "pretrain" in training:
        training["pretrain"]["epochs"] = min(training["pretrain"]["epochs"], 2 * FEWER_EPOCHS)
    tree["data"], tree["input"]["size"] = json.loads(text), 2 * tree["input"]["size"] // 3
    tree["evaluation"] = {"every": 0}
    tree["runtime"] = {"threads": 1, "checkpoint_every": training["rounds"]}


def _read_demo(path: Path) -> dict[str, Any]:
    tree = recipes.read_tree(path)
    if isinstance(tree["method"], str):
        tree["method"] = {"name": tree["method"]}
    return tree


def _base_of(method: str) -> str:
    if method.startswith("privacyface"):
        return "privacyface" if METHODS[method].releases else "without noise"
    return "vit" if method.endswith("-vit-h") else METHODS[method].task


if __name__ == "__main__":
    main()
