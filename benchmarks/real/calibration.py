"""Evaluate thresholds for one camera on score files, one site left out: ``python -m benchmarks.real.calibration DIR``.

Each file of the directory has the columns site, label (1: genuine) and score (log-odds), in the order of the pictures.
The site that is left out is the new camera. Its calibration pictures are drawn from the first half of its genuine
pictures; the second half and all attacks are evaluated. The other sites choose their threshold, as in a federation.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.calibration import K, threshold_for_camera
from fedvisage.metrics.threshold import EDGES, average_rates, histogram, threshold_from_histograms

Scores = NDArray[np.float64]
Sites = Mapping[str, tuple[Scores, NDArray[np.int64]]]
Rule = Callable[[Scores, float, float], float]
"""Maps a camera's log-odds, the sites' threshold and the wished BPCER to a threshold."""

LEAST = 20
"""Genuine pictures to evaluate, and attacks, that a site needs."""


def shrunk(k: float) -> Rule:
    """Return the rule of the package with another number of pictures that weigh as much as the sites' threshold."""

    def rule(logits: Scores, sites: float, wish: float) -> float:
        weight = len(logits) / (len(logits) + k)
        return weight * threshold_for_camera(logits, sites, wish).of_pictures + (1 - weight) * sites

    return rule


RULES: Mapping[str, Rule] = {
    "sites' threshold": lambda logits, sites, wish: sites,
    "mean - 2 sd": lambda logits, sites, wish: float(np.mean(logits) - 2 * np.std(logits, ddof=1)),
    "empirical quantile": lambda logits, sites, wish: float(np.quantile(logits, wish)),
    **{
        f"Student, k = {k:g}{' (package)' if k == K else ''}": shrunk(k) for k in sorted({0.0, 2.0, 5.0, 10.0, 20.0, K})
    },
}


def read_sites(path: Path) -> Sites:
    """Read the scores and labels of each site."""
    rows = defaultdict[str, list[tuple[float, int]]](list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[row["site"]].append((float(row["score"]), int(row["label"])))
    return {
        site: (np.array([score for score, _ in pairs]), np.array([label for _, label in pairs], np.int64))
        for site, pairs in sorted(rows.items())
    }


def thresholds_of(sites: Sites, wish: float) -> tuple[float, float]:
    """Return the sites' thresholds of equal errors, and of the wished BPCER."""
    counts = [histogram(scores, labels) for scores, labels in sites.values()]
    rejected = average_rates(counts).frr
    assert rejected is not None
    return threshold_from_histograms(counts).value, float(EDGES[np.flatnonzero(rejected <= wish)[-1]])


def errors_of(sites: Sites, target: str, wish: float, pictures: int, draws: int) -> dict[str, NDArray[np.float64]]:
    """Return BPCER and APCER of each rule on one site for each draw; empty if the site has too few pictures."""
    scores, labels = sites[target]
    genuine, attacks = scores[labels == 1], scores[labels == 0]
    first, second = np.array_split(genuine, 2)
    if len(first) < pictures or len(second) < LEAST or len(attacks) < LEAST:
        return {}
    equal, strict = thresholds_of({name: site for name, site in sites.items() if name != target}, wish)
    errors = defaultdict[str, list[tuple[float, float]]](list)
    for draw in range(draws):
        camera = numpy_rng(draw, "calibration", target).choice(first, pictures, replace=False)
        thresholds = {"sites' EER": equal, **{name: rule(camera, strict, wish) for name, rule in RULES.items()}}
        for name, threshold in thresholds.items():
            errors[name].append((float((second < threshold).mean()), float((attacks >= threshold).mean())))
    return {name: np.array(pairs) for name, pairs in errors.items()}


def table(title: str, sites: Sites, wish: float, pictures: int, draws: int) -> list[str]:
    """Return a Markdown table with the mean over sites of each rule."""
    by_site = [errors for site in sites if (errors := errors_of(sites, site, wish, pictures, draws))]
    lines = [
        f"## {title}: BPCER {wish:.0%}, {pictures} pictures, {len(by_site)} sites, {draws} draws",
        "| rule | BPCER | mean distance from the wish | APCER | HTER | worst HTER |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in by_site[0] if by_site else ():
        rates = np.array([errors[name].mean(axis=0) for errors in by_site])
        distance = np.mean([np.abs(errors[name][:, 0] - wish).mean() for errors in by_site])
        hter = rates.mean(axis=1)
        cells = (rates[:, 0].mean(), distance, rates[:, 1].mean(), hter.mean(), hter.max())
        lines.append(f"| {name} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |")
    return lines


def main() -> None:
    """Print a table per file of scores and number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bpcer", type=float, default=0.02)
    parser.add_argument("--pictures", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--draws", type=int, default=50)
    chosen = parser.parse_args()
    for path in sorted(chosen.directory.glob("*.csv")):
        sites = read_sites(path)
        for pictures in chosen.pictures:
            print("\n".join(table(path.stem, sites, chosen.bpcer, pictures, chosen.draws)), end="\n\n")


if __name__ == "__main__":
    main()
