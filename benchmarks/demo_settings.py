"""Choose the settings of the demo on development renderings, and evaluate them on fresh ones (decision 0057).

    python -m benchmarks.demo_settings choose OUT
    python -m benchmarks.demo_settings evaluate OUT
    python -m benchmarks.demo_settings show

Each rendering is a study in a directory of ``OUT``; finished cells are not run again. ``choose`` records the choice of
each row, which ``evaluate`` reads. ``show`` prints what ``evaluate`` recorded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.real.sign_flip import interval, p_value
from fedvisage.base.files import read_json, write_json
from fedvisage.metrics.recorded import read_metrics
from fedvisage.studies.conduct import run_study
from fedvisage.studies.study import slug

DEVELOPMENT, FRESH = range(101, 105), range(1, 11)
NORMS, RATES = ("batch", "group", "weight-standardised"), (0.001, 0.003)
RULES = ("source-eer", "source-train-eer", "fixed")
METHODS = {"Single": "single", "Fused": "fused", "FedPAD": "fedpad", "All": "pooled"}
BATCHNORM, ADAPTED = "FedPAD, BatchNorm", "FedPAD, BatchNorm, adapted"
FIGURES = ("auc", "hter", "eer")
SHOWN = {"Single in the demo": "Single group 0.001"}
"""The demo's Single evaluates the networks that its Fused averages."""

RECORDS = Path(__file__).parent / "records" / "demo_settings.json"

Setting = tuple[str, float, str]
"""Normalisation, learning rate and rule of the threshold."""
Figures = Mapping[str, float]


def rows_of(row: str, setting: Setting, *, adapted: bool = False) -> dict[str, dict[str, Any]]:
    """Return a row of a study, and the rows that train its networks."""
    norm, rate, rule = setting
    training = [f"method.network.norm={norm}", f"training.optimizer.lr={rate}"]
    trained = "Single" if row == "Fused" else row
    network = f"{trained} {norm} {rate}"
    rows = {network: {"set": [f"method.name={METHODS[trained]}", *training, "evaluation.threshold=source-eer"]}}
    evaluation = [f"evaluation.threshold={rule}", *(["evaluation.adapt=gated"] if adapted else [])]
    name = f"{row} {norm} {rate} {rule}{' adapted' if adapted else ''}"
    return rows | {name: {"set": [f"method.name={METHODS[row]}", *training, *evaluation], "trained_by": network}}


def run_rendering(seed: int, rows: Mapping[str, Any], out: Path, workers: int) -> dict[str, Figures]:
    """Run a study of these rows on a rendering; return the figures of each row."""
    demo = Path(str(files("fedvisage.studies") / "study.yaml"))
    sets = {name: f"{entry} seed={seed}" for name, entry in yaml.safe_load(demo.read_text())["sets"].items()}
    tree = {"title": f"The demo on rendering {seed}", "like": str(demo), "sets": sets, "seeds": [seed], "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"study-{seed}.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    run_study(path, out / str(seed), out / "cache", print, workers=workers, changes=["evaluation.features=0"])
    return {name: figures_of(out / str(seed) / "cells", name, seed) for name in rows}


def figures_of(cells: Path, row: str, seed: int) -> Figures:
    """Return the figures of a finished cell."""
    metrics = read_metrics(cells / f"{slug(row)}-M-seed{seed}" / "metrics.json")
    return {figure: float(metrics[figure]) for figure in FIGURES}


def choose(out: Path, workers: int) -> None:
    """Run all settings of all rows on the development renderings, and record figures and each row's choice."""
    settings = list(product(NORMS, RATES, RULES))
    rows: dict[str, Any] = {}
    for row, setting in product(METHODS, settings):
        rows |= rows_of(row, setting)
    figures = {seed: run_rendering(seed, rows, out / "development", workers) for seed in DEVELOPMENT}
    chosen: dict[str, Setting] = {}
    for row in METHODS:
        means = {setting: mean_of(figures, row, setting, "hter") for setting in settings}
        for setting, value in means.items():
            print(f"{row} {setting}: HTER {100 * value:.2f}, AUC {100 * mean_of(figures, row, setting, 'auc'):.2f}")
        chosen[row] = min(means, key=lambda setting: means[setting])
        if row == "FedPAD":
            with_batchnorm = [setting for setting in settings if setting[0] == "batch"]
            chosen[BATCHNORM] = min(with_batchnorm, key=lambda setting: means[setting])
    record({"development": figures, "chosen": chosen})
    print(json.dumps(chosen, indent=1))


def record(entries: Mapping[str, Any]) -> None:
    """Add entries to the records; figures keep six decimals."""
    known = read_json(RECORDS) if RECORDS.exists() else {}
    rounded = json.loads(json.dumps(entries), parse_float=lambda text: round(float(text), 6))
    write_json(RECORDS, known | rounded)


def mean_of(figures: Mapping[int, Mapping[str, Figures]], row: str, setting: Setting, figure: str) -> float:
    """Return the mean of a figure over renderings."""
    name = list(rows_of(row, setting))[-1]
    return fmean(rendering[name][figure] for rendering in figures.values())


def chosen_rows() -> tuple[dict[str, Any], dict[str, str]]:
    """Return the rows of the recorded choice with those that train their networks, and the name of each row's cells."""
    chosen: dict[str, Setting] = {
        row: (norm, rate, rule) for row, (norm, rate, rule) in read_json(RECORDS)["chosen"].items()
    }
    rows, names = dict[str, Any](), dict[str, str]()
    for row in (*METHODS, BATCHNORM, ADAPTED):
        setting = chosen[BATCHNORM if row == ADAPTED else row]
        rows |= (added := rows_of(row if row in METHODS else "FedPAD", setting, adapted=row == ADAPTED))
        names[row] = list(added)[-1]
    return rows, names | SHOWN


def evaluate(out: Path, workers: int) -> None:
    """Run the chosen settings on the fresh renderings, and record all figures."""
    rows, _ = chosen_rows()
    record({"fresh": {seed: run_rendering(seed, rows, out / "fresh", workers) for seed in FRESH}})


def lines() -> Iterator[str]:
    """Yield each recorded figure of the fresh renderings, and FedPAD's differences."""
    figures, (_, names) = read_json(RECORDS)["fresh"], chosen_rows()
    for figure in FIGURES:
        yield f"\n| {figure} in per cent | {' | '.join(map(str, FRESH))} | mean |\n|---|{'---:|' * (len(FRESH) + 1)}"
        values = {row: [figures[str(seed)][name][figure] for seed in FRESH] for row, name in names.items()}
        for row, numbers in values.items():
            yield f"| {row} | {' | '.join(f'{100 * value:.1f}' for value in numbers)} | {100 * fmean(numbers):.1f} |"
        for first, second in product(("FedPAD", BATCHNORM, ADAPTED), values):
            if first != second:
                gaps = [a - b for a, b in zip(values[first], values[second], strict=True)]
                yield describe(f"{first} - {second}", gaps)


def describe(name: str, gaps: Sequence[float]) -> str:
    """Return mean, interval and p-value of paired differences, in points."""
    low, high = interval(gaps)
    better = f"above in {sum(gap > 0 for gap in gaps)}, below in {sum(gap < 0 for gap in gaps)} of {len(gaps)}"
    return f"{name}: {100 * fmean(gaps):+.2f} [{100 * low:+.2f}, {100 * high:+.2f}], {better}, p = {p_value(gaps):.4f}"


def main() -> None:
    """Read the arguments, and run one of the steps."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo_settings", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("step", choices=("choose", "evaluate", "show"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("build/demo-settings"))
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.step != "show":
        {"choose": choose, "evaluate": evaluate}[arguments.step](arguments.out, arguments.workers)
    if arguments.step != "choose":
        print(*lines(), sep="\n")


if __name__ == "__main__":
    main()
