"""Figures of every method after training in bf16 and in fp32, at demo size, over seeds.

    python -m benchmarks.number_formats OUT [--methods fedpad fedfr ...] [--seeds 0 1 2]

runs each method in both number formats, in directories of OUT, and prints a table. Finished runs are not repeated, so
an interrupted command continues; all methods take hours. A method passes if the means of both formats differ by no more
than the larger standard deviation over the seeds. Rendered sets are made in OUT on first use.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.base.progress import Reporter
from fedvisage.methods import METHODS, read_method
from fedvisage.recipe import Recipe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.studies.study import value_of

DEMO = Path(__file__).parents[1] / "recipes/demo"
FORMATS = ("fp32", "bf16")
FIGURES = {"pad": "hter", "recognition": "generic.tar@1e-3"}
BASES = {
    "vit": "fedavg-vit-h",
    "pad": "fedpad",
    "privacyface": "privacyface",
    "recognition": "fedfr",
}
"""The demo recipe from which a method without its own one takes its data and training."""
CHANGES = {name: ["training.optimizer={name: sgd, lr: 0.05}"] for name in ("scaffold", "fednova")}
"""Settings that a method needs beside those of its base recipe."""


def main() -> None:
    """Run the methods in both formats and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.number_formats")
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("--methods", nargs="*", choices=sorted(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    print("| method | figure | fp32 | bf16 | difference | passes |\n|---|---|---:|---:|---:|---|")
    for method in options.methods:
        print(compare_formats(method, options.seeds, options.out), flush=True)


def compare_formats(method: str, seeds: Sequence[int], out: Path) -> str:
    """Run a method with each seed in both formats, and return its row of the table."""
    figure, values = FIGURES[METHODS[method].task], dict[str, list[float]]()
    for number_format in FORMATS:
        runs = {seed: out / f"{method}-{number_format}-{seed}" for seed in seeds}
        metrics = [run_recipe(recipe_of(method, number_format, seed), place) for seed, place in runs.items()]
        figures = [value_of(of_seed, figure) for of_seed in metrics]
        values[number_format] = [100 * value for value in figures if value is not None]
    spread = {name: stdev(of_seeds) if len(of_seeds) > 1 else 0.0 for name, of_seeds in values.items()}
    difference = fmean(values["bf16"]) - fmean(values["fp32"])
    cells = [f"{fmean(values[name]):.1f} ± {spread[name]:.1f}" for name in FORMATS]
    verdict = "yes" if abs(difference) <= max(spread.values()) else "**no**"
    return f"| {method} | {figure} | {' | '.join(cells)} | {difference:+.1f} | {verdict} |"


def run_recipe(recipe: Recipe, out: Path) -> Mapping[str, Any]:
    """Run a recipe, or continue its run, and return its metrics."""
    return run(Request(recipe, out, out.parent / "cache", resume=True), Reporter(Console(), quiet=True))


def recipe_of(method: str, number_format: str, seed: int) -> Recipe:
    """Return a method's recipe at demo size: its own, or that of a related method with its options."""
    own = {tree["method"]["name"]: tree for tree in map(_read_demo, sorted(DEMO.glob("*.yaml")))}
    if method in own:
        tree = own[method]
    else:
        tree = _read_demo(DEMO / f"{BASES[_base_of(method)]}.yaml")
        known = METHODS[method].options.model_fields
        tree["method"] = {key: value for key, value in tree["method"].items() if key in known} | {"name": method}
    changes = [f"runtime.precision={number_format}", f"runtime.seed={seed}", "evaluation.features=0"]
    for change in [*changes, *CHANGES.get(method, [])]:
        recipes.apply_override(tree, change)
    return recipes.validate(tree, read_method)


def _read_demo(path: Path) -> dict[str, Any]:
    tree = recipes.read_tree(path)
    if isinstance(tree["method"], str):
        tree["method"] = {"name": tree["method"]}
    return tree


def _base_of(method: str) -> str:
    if method.startswith("privacyface"):
        return "privacyface"
    return "vit" if method.endswith("-vit-h") else METHODS[method].task


if __name__ == "__main__":
    main()
