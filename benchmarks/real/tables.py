"""The tables of the development sites: published starts, texture, fusion, and training from a start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real import author
from benchmarks.real.scores import (
    CHECKOUT,
    STARTS,
    Logits,
    SiteScores,
    aucs,
    convert_starts,
    file_name,
    labels_of,
    score_starts,
    table,
)
from benchmarks.real.sites import SITES, SIZE, Cut, prepare
from benchmarks.real.training import Variant, kept_at_sites, leave_out, train_alone
from fedvisage.data.prepared import PreparedSet
from fedvisage.faces.cropping import MARGIN
from fedvisage.tasks.scoring import mean_score

TIGHT, USUAL, WIDE, PADDED = Cut(1.0), Cut(MARGIN), Cut(2.7), Cut(2.7, "replicate")
START = ("v2 2.7", "v1se 4.0")
"""The scores that texture is added to."""

DIVISORS, TEXTURE_DIVISOR = (2.30, 3.79), 0.80
"""Standard deviations of these scores and of the texture's on the development sites, as measured before."""

FUSED = (0.25, 0.5, 1.0, 2.0)
TABLES = ("published", "texture", "fusion", "finetune", "start")

FEDPAD = {"method": {"name": "fedavg", "model": "minifasnet"}, "input": {"size": SIZE, "colour": "rgb"}}
"""FedPAD is federated averaging of a ResNet-18, which the published network replaces."""


class Measurements:
    """The prepared sites of a directory, with the scores of the published networks."""

    def __init__(self, directory: Path, out: Path, seeds: int, groups: int) -> None:
        """Prepare the sets, convert the published files, and score the sets."""
        prepare(directory, out / "sets", [*dict.fromkeys(cut for _, cut in STARTS.values()), USUAL])
        self.out, self.sets, self.seeds = out, out / "sets", range(seeds)
        self.groups = [tuple(SITES)[start::groups] for start in range(groups)]
        self.labels = {site: labels_of(self.sets / TIGHT.name, site) for site in SITES}
        self.starts = convert_starts(directory, out / "starts")
        self.published = score_starts(self.sets, self.starts, out / "scores")

    def tables(self, name: str) -> Iterator[str]:
        """Yield the lines of a table."""
        return {
            "published": self.published_table,
            "texture": self.texture_table,
            "fusion": self.fusion_table,
            "finetune": self.finetune_table,
            "start": self.start_table,
        }[name]()

    def rows(self, columns: Mapping[str, SiteScores]) -> dict[str, dict[str, float]]:
        """Return the areas under the curve by column and site."""
        return {name: aucs(scores, self.labels) for name, scores in columns.items()}

    def published_table(self) -> Iterator[str]:
        """Yield the published networks at each crop."""
        yield from table("published start", self.rows(self.published))

    def texture(self, name: str) -> Variant:
        """Return a way to train the texture branch."""
        method, _, plain = name.partition(", ")
        changes = {
            "method.name": {"FedAvg": "fedpad", "pooled": "pooled"}[method],
            "training.augment.strong": plain != "no augmentation",
        }
        return Variant("real/texture", self.sets / TIGHT.name, self.sets / TIGHT.name, changes)

    def leave_out(self, name: str, seed: int) -> tuple[SiteScores, dict[str, float]]:
        """Train texture without each group."""
        return leave_out(self.texture(name), self.out / "runs" / file_name(name), seed, self.groups)

    def texture_table(self) -> Iterator[str]:
        """Yield the texture branch alone: of all other sites, and of single sites, with and without augmentation."""
        rows: dict[str, dict[str, float]] = {}
        for seed in self.seeds:
            for name in ("FedAvg", "FedAvg, no augmentation", "pooled", "pooled, no augmentation"):
                rows[f"{name}, seed {seed}"] = aucs(self.leave_out(name, seed)[0], self.labels)
            for name in ("FedAvg", "FedAvg, no augmentation"):
                alone = train_alone(self.texture(name), self.out / "runs" / f"single-{len(name)}", seed)
                by_site = [aucs(scores, self.labels) for scores in alone.values()]
                rows[name.replace("FedAvg", "single site, mean") + f", seed {seed}"] = {
                    site: float(np.mean([values[site] for values in by_site if site in values])) for site in SITES
                }
        yield from table("texture", rows)

    def fusion_table(self) -> Iterator[str]:
        """Yield start plus texture, with the divisors measured before and with those of held-out scores."""
        plain = dict(zip(START, DIVISORS, strict=True))
        start = {site: self.fused_start(site, plain) for site in SITES}
        rows = self.rows({"start": start})
        for seed in self.seeds:
            texture, divisors = self.leave_out("FedAvg", seed)
            rows |= self.rows({f"texture alone, seed {seed}": texture})
            for weight in FUSED:
                fixed = {site: start[site] + weight * texture[site] / TEXTURE_DIVISOR for site in SITES}
                own = {
                    site: self.fused_start(site, {part: self.heldout_deviation(part, site) for part in START})
                    + weight * texture[site] / divisors[site]
                    for site in SITES
                }
                rows |= self.rows(
                    {f"w = {weight:g}, seed {seed}": fixed, f"w = {weight:g}, held-out, seed {seed}": own}
                )
        yield from table("fusion", rows)
        gains = {
            name: min(values[site] - rows["start"][site] for site in SITES)
            for name, values in rows.items()
            if name.startswith("w =")
        }
        yield ""
        yield from (f"worst site against the start, {name}: {gain:+.3f}" for name, gain in gains.items())

    def fused_start(self, site: str, divisors: Mapping[str, float]) -> Logits:
        """Return the sum of the published networks' scores at a site, each over its divisor."""
        return np.asarray(np.sum([self.published[part][site] / divisors[part] for part in START], axis=0))

    def heldout_deviation(self, part: str, target: str) -> float:
        """Return the standard deviation of a column on the held-out pictures of all sites but one."""
        return float(
            np.concatenate(
                [
                    self.published[part][site][PreparedSet.open(self.sets / TIGHT.name / site).select("heldout")]
                    for site in SITES
                    if site != target
                ]
            ).std()
        )

    def finetune_table(self) -> Iterator[str]:
        """Yield gentle fine-tuning."""
        yield from self.from_start("fine-tuning", "real/finetune", "finetune", {})

    def start_table(self) -> Iterator[str]:
        """Yield FedPAD from the published start, trained as in its demo."""
        yield from self.from_start("FedPAD", "demo/fedpad", "fedpad", FEDPAD)

    def from_start(self, title: str, recipe: str, folder: str, changes: Mapping[str, Any]) -> Iterator[str]:
        """Yield training from v2: the result, its average with the start, and the effect on the sites' own people."""
        start, out = self.published["v2 2.7"], self.out / "runs" / folder
        rows, losses = self.rows({"start": start}), []
        # Padded crops are for training only. Start and result of one run give the average that the recipe keeps.
        variant = Variant(
            recipe,
            self.sets / PADDED.name,
            self.sets / WIDE.name,
            {"training.start": str(self.starts["v2"]), "training.keep": "result", **changes},
        )
        for seed in self.seeds:
            result, _ = leave_out(variant, out, seed, self.groups)
            average = {site: mean_score([start[site], result[site]]) for site in SITES}
            rows |= self.rows({f"result, seed {seed}": result, f"average, seed {seed}": average})
            kept = kept_at_sites(out, seed, self.groups)
            pairs = [
                (before["auc"], run[f"result.{site}.auc"])
                for run in kept
                for site, before in run.parts("start").items()
            ]
            lost = sum(after < before for before, after in pairs)
            losses.append(f"sites' own held-out people, seed {seed}: {lost} of {len(pairs)} comparisons lost AUC")
        yield from table(title, rows)
        yield from ("", *losses)


def missing_folders(directory: Path) -> list[str]:
    """Return the repositories that a directory lacks."""
    repositories = [repository for names in SITES.values() for repository in names]
    return [name for name in (*repositories, CHECKOUT, author.CHECKOUT) if not (directory / name).is_dir()]
