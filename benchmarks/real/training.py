"""Training on all sites but one or a group, and its scores on the sites that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fedvisage as fv
from benchmarks.real.scores import SiteScores, score
from benchmarks.real.sites import SITES
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.metrics.recorded import Metrics, read_metrics

RECIPES = Path(__file__).parents[2] / "recipes"


@dataclass(frozen=True)
class Variant:
    """A shipped recipe with changes, the sets that it trains on, and those that it is scored on."""

    recipe: str
    sets: Path
    scored: Path
    changes: Mapping[str, Any] = field(default_factory=dict)

    def run(self, out: Path, sites: tuple[str, ...], target: str, seed: int) -> fv.Run:
        """Train on sites and return the run, or the run of an earlier call."""
        changes = {
            "data.sites": {site: str(self.sets / site) for site in sites},
            "data.target": str(self.sets / target),
            "data.target_name": f"without-{target}",
            "runtime.seed": seed,
            "runtime.threads": 1,
            "evaluation.features": 0,
            "evaluation.resamples": 0,
            **self.changes,
        }
        # Frames of one film are in both splits of some sites.
        return fv.run(
            RECIPES / f"{self.recipe}.yaml", out=out, changes=changes, resume=True, quiet=True, allow_overlap=True
        )


def leave_out(
    variant: Variant, out: Path, seed: int, groups: Sequence[tuple[str, ...]]
) -> tuple[SiteScores, dict[str, float]]:
    """Train without each group; return the scores of the sites left out, and the divisors of the runs.

    A run's divisor is the standard deviation of its scores on the other sites' held-out pictures.
    """
    scores, divisors = {}, {}
    for group in groups:
        sites = tuple(site for site in training_sites(variant.sets) if site not in group)
        model = variant.run(run_of(out, group, seed), sites, group[0], seed).model
        heldout = [score(model, View.of(PreparedSet.open(variant.scored / site), "heldout")) for site in sites]
        for target in group:
            scores[target] = score(model, View.of(PreparedSet.open(variant.scored / target)))
            divisors[target] = float(np.concatenate(heldout).std())
    return scores, divisors


def run_of(out: Path, group: tuple[str, ...], seed: int) -> Path:
    """Return the directory of the run without a group."""
    return out / f"{'-'.join(group)}-seed{seed}"


def training_sites(sets: Path) -> tuple[str, ...]:
    """Return the sites with both classes in both splits; too few attacks of the others show a face."""
    views = {site: [View.of(PreparedSet.open(sets / site), split) for split in ("train", "heldout")] for site in SITES}
    return tuple(site for site, parts in views.items() if all(len(set(part.labels.tolist())) == 2 for part in parts))


def train_alone(variant: Variant, out: Path, seed: int) -> dict[str, SiteScores]:
    """Train at every site alone, and return the scores of all other sites by the site that trained."""
    by_site: dict[str, SiteScores] = {}
    for site in training_sites(variant.sets):
        others = [other for other in SITES if other != site]
        model = variant.run(out / f"{site}-seed{seed}", (site,), others[0], seed).model
        by_site[site] = {other: score(model, View.of(PreparedSet.open(variant.scored / other))) for other in others}
    return by_site


def kept_at_sites(out: Path, seed: int, groups: Sequence[tuple[str, ...]]) -> list[Metrics]:
    """Return the sites' own held-out figures of start and result, from each run of `leave_out`."""
    files = [run_of(out, group, seed) / "metrics.json" for group in groups]
    return [read_metrics(path).part("kept") for path in files]
