"""Choose what to add to the published pair by leaving whole families out (decision 0059).

    python -m benchmarks.real.additions DIR [--out WORK]

``DIR`` holds the repositories of ``benchmarks.real``. Finished trainings have a record in ``records/additions``; if
no record is missing, ``DIR`` may be empty.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.real import families
from benchmarks.real.cells import current_commit, processor_seconds, train_at
from benchmarks.real.families import MATCHED, PLAIN, SOURCES
from benchmarks.real.protocol import PLAN
from benchmarks.real.scores import CHECKOUT, Logits, auc, convert_starts, labels_of, score
from benchmarks.real.sites import SIZE, Cut, add_picture
from benchmarks.real.verdicts import family_means
from fedvisage.base.errors import UserError
from fedvisage.base.files import read_arrays, read_json, write_arrays, write_json
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.faces.cropping import record_of
from fedvisage.tasks.finished_model import open_model

PAIR = {"v2": (Cut(2.7), 2.30), "v1se": (Cut(4.0), 3.79)}
"""The published networks, each with its cut and the divisor of its log-odds."""

WEIGHTS = (0.25, 0.5, 1.0, 2.0)
SEEDS = range(3)
MOST_LOST = 0.003
"""The largest loss of AUC in a family that a choice may have."""


@dataclass(frozen=True)
class Candidate:
    """A detector that the federation trains: changes to the recipe, and the sets that it trains on."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    sets: str = PLAIN


CANDIDATES = {
    "FedPAD": Candidate(),
    "FedPAD, augmented": Candidate({"training.augment.strong": True}),
    "FedPAD, rate 0.01": Candidate({"training.optimizer.lr": 0.01}),
    "GroupNorm": Candidate({"method.network.norm": "group"}),
    "FedWon": Candidate({"method.network.norm": "weight-standardised"}),
    "MixStyle": Candidate({"method.name": "mixstyle"}),
    "GA": Candidate({"method.name": "ga"}),
    "FedSR": Candidate({"method.name": "fedsr"}),
    "SSDG": Candidate({"method.name": "ssdg"}),
    "RGB and HSV": Candidate({"input.colour": "rgb+hsv"}),
    "matched resolutions": Candidate(sets=MATCHED),
    "Fused": Candidate({"method.name": "fused"}),
}

FAMILIES = PLAN.sites
KINDS = [*dict.fromkeys(FAMILIES.values())]

RECORDS = Path(__file__).parent / "records" / "additions" / "aucs.json"

Cell = tuple[str, str, int]
"""A candidate, the family that does not train, and a seed."""
Gains = Mapping[tuple[str, float], Mapping[str, float]]
"""Gain in AUC over the pair by family, for each candidate and weight."""


def prepare_pair(directory: Path, out: Path) -> None:
    """Write the sets of the pair's crops, OUT/CUT/SITE, of the pictures of ``families.prepare_sites``."""
    cuts = [cut for cut, _ in PAIR.values()]
    missing = [site for site in SOURCES if not all((out / cut.name / site).exists() for cut in cuts)]
    for site, faces in families.locate_faces(directory, missing, out.parent / "starts"):
        located = [(label, face) for label, entries in faces.items() for face in entries]
        for cut in cuts:
            (out / cut.name).mkdir(parents=True, exist_ok=True)
            record = record_of("face", margin=cut.margin, padding=cut.padding)
            with Writer(out / cut.name / site, name=site, size=SIZE, source=f"folder {site}", crop=record) as writer:
                for number, (label, entry) in enumerate(located):
                    crop = cut.cut(entry.read(), entry.face)
                    add_picture(writer, crop, f"{number:04d}", label, "attack", "test")


def score_pair(directory: Path, sets: Path, out: Path) -> dict[str, Logits]:
    """Return the pair's scores of all pictures of each site, in the order of its plain set."""
    path = out / "pair.safetensors"
    if not path.exists():
        starts = convert_starts(directory, out / "starts")
        models = {variant: open_model(starts[variant]) for variant in PAIR}
        scores = dict[str, Logits]()
        for site in SOURCES:
            parts = []
            for variant, (cut, divisor) in PAIR.items():
                view = View.of(PreparedSet.open(sets / cut.name / site))
                if view.labels.tolist() != labels_of(sets / PLAIN, site).tolist():
                    raise ValueError(f"{site}: the pair's crops show other pictures than the plain set")
                parts.append(score(models[variant], view) / divisor)
            scores[site] = np.sum(parts, axis=0)
        write_arrays(path, scores)
    return dict(read_arrays(path)[0])


def score_branch(cell: Cell, sets: Path, out: Path) -> dict[str, Logits]:
    """Train a candidate on the sites of the other families; return its scores at the family's sites, over σ."""
    name, family, seed = cell
    candidate = CANDIDATES[name]
    sites = [site for site, source in SOURCES.items() if source.family != family]
    targets = [site for site, source in SOURCES.items() if source.family == family]
    paths = {site: sets / candidate.sets / site for site in sites}
    run = train_at(paths, sets / candidate.sets / targets[0], seed, {**PLAN.changes, **candidate.changes}, out)
    views = [View.of(PreparedSet.open(path), "heldout") for path in paths.values()]
    sigma = np.concatenate([score(run.model, view) for view in views]).std()
    plain = {site: View.of(PreparedSet.open(sets / PLAIN / site)) for site in targets}
    return {site: score(run.model, view) / sigma for site, view in plain.items()}


def run_missing(directory: Path, out: Path, records: Path) -> None:
    """Train and score each cell without a record, and write the AUC of its branch and sums by site."""
    known: dict[str, Any] = read_json(records) if records.exists() else {"cells": {}}
    missing = [cell for cell in product(CANDIDATES, KINDS, SEEDS) if key_of(cell) not in known["cells"]]
    if not missing:
        return
    if lacking := [*families.missing_folders(directory), *([] if (directory / CHECKOUT).is_dir() else [CHECKOUT])]:
        raise UserError(str(directory), f"has no {lacking[0]}; {len(missing)} trainings have no record")
    sets = out / "protocol"
    families.prepare_sites(directory, sets)
    prepare_pair(directory, sets)
    pair = score_pair(directory, sets, out)
    labels = {site: labels_of(sets / PLAIN, site) for site in SOURCES}
    start = {site: round(auc(pair[site], labels[site]), 6) for site in SOURCES}
    if known.setdefault("pair", start) != start:
        raise UserError(str(sets), "has other pictures than the recorded runs; use the sets of the first run")
    for number, cell in enumerate(missing, 1):
        key, began = key_of(cell), processor_seconds()
        branch = score_branch(cell, sets, out / "additions" / key.replace(", ", "-").replace(" ", "-"))
        sums = {
            site: {w: auc(pair[site] + w * scores, labels[site]) for w in WEIGHTS} for site, scores in branch.items()
        }
        known["cells"][key] = {
            "commit": current_commit(),
            "seconds": round(processor_seconds() - began, 1),
            "alone": {site: round(auc(scores, labels[site]), 6) for site, scores in branch.items()},
            "sums": {site: {f"{w:g}": round(value, 6) for w, value in by_w.items()} for site, by_w in sums.items()},
        }
        records.parent.mkdir(parents=True, exist_ok=True)
        write_json(records, known)
        print(f"{number} of {len(missing)}: {key}", flush=True)


def key_of(cell: Cell) -> str:
    """Return the name of a cell's record."""
    name, family, seed = cell
    return f"{name}/without {family}/{seed}"


def read_gains(records: Path) -> tuple[Gains, dict[str, float], dict[str, Mapping[str, float]]]:
    """Return all gains by family, the pair's AUC by site, and each branch's own AUC by family, averaged over seeds."""
    known = read_json(records)
    start: dict[str, float] = known["pair"]
    gains, alone = dict[tuple[str, float], Mapping[str, float]](), dict[str, Mapping[str, float]]()
    for name in CANDIDATES:
        seeds = {
            site: [known["cells"][key_of((name, source.family, seed))] for seed in SEEDS]
            for site, source in SOURCES.items()
        }
        by_site = {site: fmean(cell["alone"][site] for cell in cells) for site, cells in seeds.items()}
        alone[name] = family_means(by_site, FAMILIES)
        for weight in WEIGHTS:
            sums = {
                site: fmean(cell["sums"][site][f"{weight:g}"] for cell in cells) - start[site]
                for site, cells in seeds.items()
            }
            gains[name, weight] = family_means(sums, FAMILIES)
    return gains, start, alone


def choose(gains: Gains, among: Iterable[str]) -> tuple[str, float] | None:
    """Return the candidate and weight of the largest mean gain, if no family loses more than `MOST_LOST`."""
    among = [*among]
    means = {
        choice: fmean(by_family[family] for family in among)
        for choice, by_family in gains.items()
        if min(by_family[family] for family in among) >= -MOST_LOST
    }
    best = max(means, key=lambda choice: means[choice], default=None)
    return None if best is None or means[best] <= 0 else best


def lines(gains: Gains, start: Mapping[str, float], alone: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the table, the choice, and its nested estimate."""
    yield f"| added | w | gain | {' | '.join(KINDS)} |"
    yield f"|---|{'---:|' * (2 + len(KINDS))}"
    by_family = family_means(start, FAMILIES)
    yield f"| the pair's AUC | | {fmean(by_family.values()):.3f} | {row(by_family, '.3f')} |"
    for name, values in alone.items():
        yield f"| {name} alone, AUC | | {fmean(values.values()):.3f} | {row(values, '.3f')} |"
    for (name, weight), values in gains.items():
        yield f"| {name} | {weight:g} | {fmean(values.values()):+.3f} | {row(values, '+.3f')} |"
    yield ""
    yield f"choice over all families: {choose(gains, KINDS)}"
    nested = dict[str, float]()
    for family in KINDS:
        choice = choose(gains, [other for other in KINDS if other != family])
        nested[family] = 0.0 if choice is None else gains[choice][family]
        yield f"chosen without {family}: {choice}, gain there {nested[family]:+.3f}"
    yield f"nested estimate of the gain at an unseen family: {fmean(nested.values()):+.3f}"


def row(values: Mapping[str, float], form: str) -> str:
    """Return the cells of a row."""
    return " | ".join(f"{values[family]:{form}}" for family in KINDS)


def main() -> int:
    """Run the missing trainings; print table and choice."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real.additions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/real"))
    parser.add_argument("--records", type=Path, default=RECORDS, help="file with the figures of finished trainings")
    options = parser.parse_args()
    try:
        run_missing(options.directory, options.out, options.records)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(*lines(*read_gains(options.records)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
