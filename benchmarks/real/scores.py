"""Scores of sites' pictures: of the published networks at several crops, and their areas under the curve by site."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.parity import FILES, WEIGHTS
from benchmarks.real.sites import SITES, Cut
from fedvisage.base.files import read_arrays, write_arrays
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.metrics.pad import curve_auc, error_curve
from fedvisage.starts.convert import convert
from fedvisage.tasks.finished_model import FinishedModel, open_model

CHECKOUT = "minivision-ai+Silent-Face-Anti-Spoofing"

Logits = NDArray[np.float64]
SiteScores = Mapping[str, Logits]
"""Live logits of all pictures of each site, in the order of its set."""

STARTS: Mapping[str, tuple[str, Cut]] = {
    "v2 1.0": ("v2", Cut(1.0)),
    "v2 1.0, linear": ("v2", Cut(1.0, scaling="linear")),
    "v2 1.5": ("v2", Cut(1.5)),
    "v2 2.7": ("v2", Cut(2.7)),
    "v2 2.7, linear": ("v2", Cut(2.7, scaling="linear")),
    "v1se 4.0": ("v1se", Cut(4.0)),
    "v2 1.5, padded": ("v2", Cut(1.5, "replicate")),
    "v2 2.7, padded": ("v2", Cut(2.7, "replicate")),
    "v2 2.7, padded, linear": ("v2", Cut(2.7, "replicate", "linear")),
    "v1se 4.0, padded": ("v1se", Cut(4.0, "replicate")),
    "v1se 4.0, padded, linear": ("v1se", Cut(4.0, "replicate", "linear")),
}
"""The published network and the cut of each column."""

SUMS: Mapping[str, tuple[str, ...]] = {
    "v2 2.7 + v1se 4.0": ("v2 2.7", "v1se 4.0"),
    "v2 1.5 + v2 2.7 + v1se 4.0": ("v2 1.5", "v2 2.7", "v1se 4.0"),
    "v2 2.7 + v1se 4.0, padded": ("v2 2.7, padded", "v1se 4.0, padded"),
    "v2 2.7 + v1se 4.0, padded, linear": ("v2 2.7, padded, linear", "v1se 4.0, padded, linear"),
}


def convert_starts(directory: Path, out: Path) -> dict[str, Path]:
    """Convert the published files once, and return the starts by variant."""
    out.mkdir(parents=True, exist_ok=True)
    starts = {variant: out / f"{variant}.safetensors" for variant in FILES.values()}
    for file, variant in FILES.items():
        if not starts[variant].exists():
            convert(directory / CHECKOUT / WEIGHTS / file, f"minifasnet-{variant}", starts[variant])
    return starts


def score_starts(sets: Path, starts: Mapping[str, Path], out: Path) -> dict[str, SiteScores]:
    """Return the scores of the published networks at every cut, and the sums of their log-odds; keep them in OUT."""
    out.mkdir(parents=True, exist_ok=True)
    models = {variant: open_model(path) for variant, path in starts.items()}
    columns: dict[str, SiteScores] = {}
    for name, (variant, cut) in STARTS.items():
        path = out / f"{file_name(name)}.safetensors"
        if not path.exists():
            write_arrays(path, score_sites(models[variant], sets / cut.name))
        columns[name] = read_arrays(path)[0]
    sums = {
        name: {site: np.sum([columns[part][site] for part in parts], axis=0) for site in SITES}
        for name, parts in SUMS.items()
    }
    return columns | sums


def score_sites(model: FinishedModel, sets: Path, sites: Iterable[str] = SITES) -> SiteScores:
    """Return a model's scores of all pictures of sites."""
    return {site: score(model, View.of(PreparedSet.open(sets / site))) for site in sites}


def score(model: FinishedModel, view: View, size: int = 64) -> Logits:
    """Return a model's scores of a view's pictures."""
    starts = range(0, len(view), size)
    parts = [model.score(view.batch(np.arange(start, min(start + size, len(view)))).images) for start in starts]
    return np.concatenate(parts).astype(np.float64)


def labels_of(sets: Path, site: str) -> NDArray[np.int64]:
    """Return the labels of a site's pictures."""
    return View.of(PreparedSet.open(sets / site)).labels.astype(np.int64)


def auc(logits: Logits, labels: NDArray[np.int64]) -> float:
    """Return the area under the curve of one site."""
    curve = error_curve(logits, labels)
    return float(curve_auc(curve.far, curve.frr))


def aucs(scores: SiteScores, labels: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    """Return the area under the curve of every site that has scores."""
    return {site: auc(logits, labels[site]) for site, logits in scores.items()}


def table(title: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a Markdown table of areas under the curve: the mean over sites, the worst site, and every site."""
    sites = sorted(next(iter(rows.values())))
    lines = [f"| {title} | mean | worst | {' | '.join(sites)} |", f"| --- |{' ---: |' * (len(sites) + 2)}"]
    for name, values in rows.items():
        cells = [float(np.mean([*values.values()])), min(values.values()), *(values[site] for site in sites)]
        lines.append(f"| {name} | {' | '.join(f'{value:.3f}' for value in cells)} |")
    return lines


def file_name(column: str) -> str:
    """Return a column's name without spaces."""
    return column.replace(", ", "-").replace(" + ", "+").replace(" ", "-")


def write_scores(out: Path, columns: Mapping[str, SiteScores], labels: Mapping[str, NDArray[np.int64]]) -> None:
    """Write one file per column with the site, label and score of every picture, outside the repository."""
    out.mkdir(parents=True, exist_ok=True)
    for name, scores in columns.items():
        with (out / f"{file_name(name)}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("site", "label", "score"))
            for site in sorted(labels):
                rows.writerows(
                    zip([site] * len(labels[site]), labels[site].tolist(), scores[site].tolist(), strict=True)
                )
