"""Evaluate thresholds for one camera on score files, one site left out: ``python -m benchmarks.real.calibration DIR``.

Each file of the directory has the columns site, label (1: genuine) and score (log-odds), in the order of the pictures.
The site that is left out is the new camera. Its calibration pictures are drawn from its genuine pictures: of all times,
or of the first half (``--from first-half``), when the second half has other people or light. The other genuine pictures
and all attacks are evaluated. The other sites choose their thresholds, and the rule of the last row, without the site.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.calibration import K, threshold_for_camera
from fedvisage.metrics.threshold import EDGES, average_rates, histogram, threshold_from_histograms

Scores = NDArray[np.float64]
Sites = Mapping[str, tuple[Scores, NDArray[np.int64]]]
Source = Literal["all", "first-half"]

LEAST = 20
"""Genuine pictures to evaluate, and attacks, that a site needs."""

DISTANCE = 0.03
"""Mean distance of BPCER from the wish that a rule may have to be chosen."""


@dataclass(frozen=True)
class Camera:
    """Genuine log-odds of a camera, and what the other sites know: thresholds, spread and distance to their quantile.

    ``spread`` is the mean standard deviation within a site, ``offset`` the mean distance from a site's median to the
    wished quantile of its genuine pictures.
    """

    logits: Scores
    wish: float
    equal: float
    wished: float
    spread: float
    offset: float

    def student(self, k: float, sites: float, pictures: float = 0.0) -> float:
        """Return Student's threshold, with the sites' threshold as k pictures and their spread as some pictures."""
        count = len(self.logits)
        mean, variance = np.mean(self.logits), np.var(self.logits, ddof=1)
        spread = math.sqrt((count * variance + pictures * self.spread**2) / (count + pictures))
        scaled = mean + (self.logits - mean) * spread / math.sqrt(variance)
        return float((count * threshold_for_camera(scaled, 0.0, self.wish).of_pictures + k * sites) / (count + k))


Rule = Callable[[Camera], float]


def shrunk(k: float) -> Rule:
    """Return the rule of the package with another number of pictures that weigh as much as the sites' threshold."""
    return lambda camera: camera.student(k, camera.equal)


RULES: Mapping[str, Rule] = {
    "sites' EER": lambda camera: camera.equal,
    "sites' BPCER": lambda camera: camera.wished,
    "mean - 2 sd": lambda camera: float(np.mean(camera.logits) - 2 * np.std(camera.logits, ddof=1)),
    "empirical quantile": lambda camera: float(np.quantile(camera.logits, camera.wish)),
    "logistic tail": lambda camera: float(
        np.mean(camera.logits) - np.std(camera.logits, ddof=1) * math.sqrt(3) / math.pi * math.log(1 / camera.wish - 1)
    ),
    "median - sites' offset": lambda camera: float(np.median(camera.logits) - camera.offset),
    "Student": lambda camera: camera.student(0, 0.0),
    "Student, sites' spread as 20 pictures": lambda camera: camera.student(0, 0.0, 20),
    "Student, sites' BPCER as 5 pictures": lambda camera: camera.student(5, camera.wished),
    **{
        f"Student, sites' EER as {k:g} pictures{' (package)' if k == K else ''}": shrunk(k)
        for k in sorted({1.0, 2.0, 5.0, 10.0, K})
    },
}
"""Thresholds by name; all but the first two are candidates for the other sites' choice."""

CHOSEN = "chosen by the other sites"
FIXED = 2


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


def camera_of(logits: Scores, others: Sites, wish: float) -> Camera:
    """Return a camera with the other sites' knowledge."""
    counts = [histogram(scores, labels) for scores, labels in others.values()]
    rejected = average_rates(counts).frr
    assert rejected is not None
    genuine = [scores[labels == 1] for scores, labels in others.values()]
    return Camera(
        logits,
        wish,
        threshold_from_histograms(counts).value,
        float(EDGES[np.flatnonzero(rejected <= wish)[-1]]),
        float(np.mean([np.std(scores, ddof=1) for scores in genuine])),
        float(np.mean([np.median(scores) - np.quantile(scores, wish) for scores in genuine])),
    )


def errors_of(
    sites: Sites, target: str, wish: float, pictures: int, draws: int, source: Source
) -> dict[str, NDArray[np.float64]]:
    """Return BPCER and APCER of each rule on one site for each draw; empty if the site has too few pictures."""
    scores, labels = sites[target]
    genuine, attacks = scores[labels == 1], scores[labels == 0]
    drawn = len(genuine) if source == "all" else (len(genuine) + 1) // 2
    evaluated = len(genuine) - (pictures if source == "all" else drawn)
    if drawn < pictures or min(evaluated, len(attacks)) < LEAST:
        return {}
    known = camera_of(genuine, {name: site for name, site in sites.items() if name != target}, wish)
    errors = defaultdict[str, list[tuple[float, float]]](list)
    for draw in range(draws):
        places = numpy_rng(draw, "calibration", target).choice(drawn, pictures, replace=False)
        rest = np.delete(genuine, places) if source == "all" else genuine[drawn:]
        camera = replace(known, logits=genuine[places])
        for name, rule in RULES.items():
            threshold = rule(camera)
            errors[name].append((float((rest < threshold).mean()), float((attacks >= threshold).mean())))
    return {name: np.array(pairs) for name, pairs in errors.items()}


def errors_by_site(
    sites: Sites, wish: float, pictures: int, draws: int, source: Source
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the errors of every site that has enough pictures."""
    by_site = {site: errors_of(sites, site, wish, pictures, draws, source) for site in sites}
    return {site: errors for site, errors in by_site.items() if errors}


def distance_and_hter(errors: Mapping[str, Mapping[str, NDArray[np.float64]]], rule: str, wish: float) -> Scores:
    """Return a rule's mean distance from the wish and mean HTER over sites."""
    return np.array(
        [
            np.mean([np.abs(rates[rule][:, 0] - wish).mean() for rates in errors.values()]),
            np.mean([rates[rule].mean() for rates in errors.values()]),
        ]
    )


def choose(errors: Mapping[str, Mapping[str, NDArray[np.float64]]], wish: float) -> str:
    """Return the rule with the lowest HTER among those near the wish; the nearest if none is near."""
    measured = {rule: distance_and_hter(errors, rule, wish) for rule in [*RULES][FIXED:]}
    near = {rule: hter for rule, (distance, hter) in measured.items() if distance <= DISTANCE}
    return min(near, key=lambda rule: near[rule]) if near else min(measured, key=lambda rule: float(measured[rule][0]))


def choose_without(target: str, sites: Sites, wish: float, pictures: int, draws: int, source: Source) -> str:
    """Return the rule that the other sites choose, each evaluated with the thresholds of the rest."""
    others = {name: site for name, site in sites.items() if name != target}
    return choose(errors_by_site(others, wish, pictures, draws, source), wish)


def table(title: str, sites: Sites, wish: float, pictures: int, draws: int, source: Source) -> list[str]:
    """Return a Markdown table with the mean over sites of each rule, and the choices of the other sites."""
    errors = errors_by_site(sites, wish, pictures, draws, source)
    chosen = {target: choose_without(target, sites, wish, pictures, draws, source) for target in errors}
    for target, rule in chosen.items():
        errors[target][CHOSEN] = errors[target][rule]
    lines = [
        f"## {title}: BPCER {wish:.0%}, {pictures} pictures of {source}, {len(errors)} sites, {draws} draws",
        "| rule | BPCER | mean distance from the wish | APCER | HTER | worst HTER |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in (*RULES, CHOSEN) if errors else ():
        rates = np.array([of_site[name].mean(axis=0) for of_site in errors.values()])
        distance, hter = distance_and_hter(errors, name, wish)
        cells = (rates[:, 0].mean(), distance, rates[:, 1].mean(), hter, rates.mean(axis=1).max())
        lines.append(f"| {name} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |")
    choices = sorted(chosen.values())
    return [*lines, "", *(f"chosen {choices.count(name)} times: {name}" for name in dict.fromkeys(choices))]


def main() -> None:
    """Print a table per file of scores and number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bpcer", type=float, default=0.02)
    parser.add_argument("--pictures", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--from", dest="source", choices=["all", "first-half"], default="all")
    chosen = parser.parse_args()
    for path in sorted(chosen.directory.glob("*.csv")):
        sites = read_sites(path)
        for pictures in chosen.pictures:
            lines = table(path.stem, sites, chosen.bpcer, pictures, chosen.draws, chosen.source)
            print("\n".join(lines), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
