"""Choose the default of ``fedvisage calibrate`` on score files: ``python -m benchmarks.real.calibration FILE``.

``python -m benchmarks.real.bursts`` writes the file: site, label (1: genuine), burst, place in it and score. Each site
is the new camera once. Its calibration pictures are the first of 20 of its genuine bursts, drawn 50 times; the other
genuine bursts and all attacks are evaluated, picture by picture, and as means of each burst's scores.

A candidate is a wish (the share of genuine pictures to reject), the number of pictures that weigh as much as the
model's own threshold (score 0.5, log-odds 0), and whether the pictures may also raise that threshold. Neither
needs anything from other sites. The criterion is the mean HTER over kinds of sites, because all sites but two follow
one tutorial: the tutorial's sites are averaged first and count as one. The candidate of a site is the best without that
site, and in a second table without all sites of its kind. Among equal candidates, the first in the list is taken. The
default of the package is the best over all sites; what the nested choice gives is what to expect of it.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.sites import kind_of
from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.calibration import threshold_for_camera

Bursts = list[NDArray[np.float64]]
Site = tuple[Bursts, Bursts]
"""The scores of each burst: of genuine faces, and of attacks."""

LEAST = 10
"""Genuine bursts to evaluate, and bursts of attacks, that a site needs."""

OWN = 0.0
"""The log-odds of the published pair's threshold."""

WITHOUT = ("no face", "author", "small")
"""Words in place of a score; such pictures are not evaluated."""

WISHES = (0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
WEIGHTS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)


@dataclass(frozen=True)
class Candidate:
    """A rule: the wish, the pictures that weigh as much as the model's threshold, and whether it may rise."""

    wish: float
    k: float
    rises: bool

    def threshold(self, logits: NDArray[np.float64]) -> float:
        """Return the threshold for a camera."""
        of_pictures = threshold_for_camera(logits, OWN, self.wish).of_pictures
        if not self.rises:
            of_pictures = min(of_pictures, OWN)
        weight = len(logits) / (len(logits) + self.k)
        return weight * of_pictures + (1 - weight) * OWN

    def __str__(self) -> str:
        """Return its name in tables."""
        return f"BPCER {self.wish:.3g}, own as {self.k:g} pictures, {'both ways' if self.rises else 'only lower'}"


CANDIDATES = [Candidate(*values) for values in product(WISHES, WEIGHTS, (True, False))]
EARLIER = Candidate(0.02, 2.0, True)
"""The default before this choice."""

Errors = Mapping[object, NDArray[np.float64]]
"""By rule: BPCER and APCER of single pictures, then of bursts, in each draw."""


def read_sites(path: Path) -> dict[str, Site]:
    """Read the scores of each site's bursts."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["score"] not in WITHOUT]
    sites: dict[str, Site] = {}
    key = itemgetter("site", "label", "burst")
    for (site, label, _), group in groupby(sorted(rows, key=key), key=key):
        bursts = sites.setdefault(site, ([], []))[0 if label == "1" else 1]
        bursts.append(np.array([float(row["score"]) for row in group]))
    return sites


def errors_of(name: str, site: Site, pictures: int, draws: int) -> Errors:
    """Return the errors of each rule at one site; empty if the site has too few bursts."""
    genuine, attacks = site
    if len(genuine) < pictures + LEAST or len(attacks) < LEAST:
        return {}
    rules: dict[object, Callable[[NDArray[np.float64]], float]] = {"score 0.5": lambda logits: OWN}
    rules |= {candidate: candidate.threshold for candidate in CANDIDATES}
    errors: dict[object, list[list[float]]] = {rule: [] for rule in rules}
    for draw in range(draws):
        drawn = set(numpy_rng(draw, "calibration", name).choice(len(genuine), pictures, replace=False).tolist())
        logits = np.array([genuine[place][0] for place in sorted(drawn)])
        rest = [burst for place, burst in enumerate(genuine) if place not in drawn]
        views = [(np.concatenate(rest), np.concatenate(attacks)), (means_of(rest), means_of(attacks))]
        for rule, threshold_of in rules.items():
            threshold = threshold_of(logits)
            rates = [((live < threshold).mean(), (fake >= threshold).mean()) for live, fake in views]
            errors[rule].append([float(rate) for pair in rates for rate in pair])
    return {rule: np.array(values) for rule, values in errors.items()}


def means_of(bursts: Bursts) -> NDArray[np.float64]:
    """Return the mean score of each burst."""
    return np.array([burst.mean() for burst in bursts])


def mean_over_kinds(values: Mapping[str, float]) -> float:
    """Return the mean over kinds of the means over each kind's sites."""
    kinds = {kind_of(site) for site in values}
    return float(
        np.mean([np.mean([value for site, value in values.items() if kind_of(site) == kind]) for kind in kinds])
    )


def choose(errors: Mapping[str, Errors]) -> Candidate:
    """Return the candidate with the lowest mean HTER of single pictures over the kinds of sites."""
    return min(
        CANDIDATES,
        key=lambda rule: mean_over_kinds({site: float(of[rule][:, :2].mean()) for site, of in errors.items()}),
    )


def table(sites: Mapping[str, Site], pictures: int, draws: int) -> list[str]:
    """Return Markdown tables of the rules, by mean over sites and kinds, and of the nested choice by site."""
    errors = {name: of for name, site in sites.items() if (of := errors_of(name, site, pictures, draws))}
    best = choose(errors)
    without_site = {name: choose({other: errors[other] for other in errors if other != name}) for name in errors}
    without_kind = {
        name: choose({other: errors[other] for other in errors if kind_of(other) != kind_of(name)}) for name in errors
    }
    rules: dict[str, Mapping[str, object]] = {
        "score 0.5": dict.fromkeys(errors, "score 0.5"),
        f"earlier: {EARLIER}": dict.fromkeys(errors, EARLIER),
        f"best: {best}": dict.fromkeys(errors, best),
        "chosen without the site": without_site,
        "chosen without the site's kind": without_kind,
    }
    lines = [
        f"## {pictures} pictures, {len(errors)} sites, {draws} draws; single pictures, then bursts",
        "| rule | BPCER | APCER | HTER | HTER over kinds | worst HTER | bursts' HTER | over kinds | worst |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for title, rule in rules.items():
        rates = {name: errors[name][rule[name]].mean(axis=0) for name in errors}
        single = {name: float(rate[:2].mean()) for name, rate in rates.items()}
        burst = {name: float(rate[2:].mean()) for name, rate in rates.items()}
        means = np.mean([*rates.values()], axis=0)
        cells = [means[0], means[1]]
        for values in (single, burst):
            cells += [np.mean([*values.values()]), mean_over_kinds(values), max(values.values())]
        lines.append(f"| {title} | {' | '.join(f'{100 * float(cell):.1f}' for cell in cells)} |")
    lines += ["", "| site | score 0.5 | earlier | nested | bursts, nested |", "|---|---:|---:|---:|---:|"]
    for name in errors:
        cells = [float(errors[name][rule][:, :2].mean()) for rule in ("score 0.5", EARLIER, without_site[name])]
        cells.append(float(errors[name][without_site[name]][:, 2:].mean()))
        lines.append(f"| {name} | {' | '.join(f'{100 * cell:.1f}' for cell in cells)} |")
    choices = Counter(str(rule) for rule in without_site.values())
    return [*lines, "", *(f"chosen {count} times: {name}" for name, count in choices.most_common())]


def main() -> None:
    """Print the tables for each number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--pictures", type=int, nargs="+", default=[20])
    parser.add_argument("--draws", type=int, default=50)
    options = parser.parse_args()
    sites = read_sites(options.file)
    for pictures in options.pictures:
        print("\n".join(table(sites, pictures, options.draws)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
