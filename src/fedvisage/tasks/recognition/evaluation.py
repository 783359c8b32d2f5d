"""Evaluation of a finished recognition model: its threshold, its metrics, and the files for recomputing them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvisage.base.files import write_atomically, write_tensors
from fedvisage.data.batches import View
from fedvisage.federation.method import Method
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.generic import threshold_at_fmr
from fedvisage.metrics.groups import Groups
from fedvisage.metrics.operating_point import ALL, ClassCounts, ErrorCurves, average_curves
from fedvisage.metrics.threshold import LIMIT, Histogram, Threshold, auc_from_histogram, eer_from_histogram
from fedvisage.metrics.verification import FARS
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.recognition.benchmarks import evaluate_benchmarks, evaluate_generic
from fedvisage.tasks.recognition.heldout import PEOPLE, personal_figures, personal_of_merged, rates_of
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.seal import PAIRS, SIMILARITIES
from fedvisage.tasks.task import TrainingResult


def heldout_table(histograms: Mapping[str, Histogram]) -> dict[str, Any]:
    """Return AUC and EER of each site's pairs."""
    return {
        name: {"auc": auc_from_histogram(counts), "eer": eer_from_histogram(counts)}
        for name, counts in sorted(histograms.items())
    }


def unseen_table(histograms: Mapping[str, Histogram]) -> dict[str, Any]:
    """Return AUC, EER and TAR at the measurable FARs of each site's held-out people."""
    rows = heldout_table(histograms)
    for name, counts in histograms.items():
        thresholds = {far: threshold_at_fmr([counts], far) for far in FARS}
        tar = {far: 1 - at.frr for far, at in thresholds.items() if at is not None and at.frr is not None}
        rows[name] |= rates_of(tar)
    return rows


def choose_thresholds(method: Method, recipe: Recipe, histograms: Mapping[str, Histogram]) -> dict[str, Threshold]:
    """Choose the decision thresholds at the recipe's false match rate; members with too few pairs have none."""
    fmr = recipe.evaluation.people.fmr
    groups = {name: [counts] for name, counts in sorted(histograms.items())}
    if method.members != "each":
        groups = {"": [counts for _, counts in sorted(histograms.items())]}
    chosen = {name: threshold_at_fmr(counts, fmr) for name, counts in groups.items()}
    return {name: threshold for name, threshold in chosen.items() if threshold is not None}


def average_pair_curves(server: Server, replies: Mapping[str, Message]) -> ErrorCurves | None:
    """Return the error rates over the pairs of all sites, as for the decision threshold."""
    genuine, impostor = list[ClassCounts](), list[ClassCounts]()
    for site, reply in sorted(replies.items()):
        counts, (people, pairs) = reply["histogram"].numpy(), reply[PEOPLE.name].tolist()
        if people < 0 or pairs < 0 or (counts < 0).any():
            server.exchange.note_failure(site, "refused: sent negative counts")
            continue
        impostor.append(ClassCounts(counts[0], pairs, int(counts[0].sum())))
        genuine.append(ClassCounts(counts[1], people, int(counts[1].sum())))
    return average_curves(genuine, {ALL: impostor}, pooled=True, scale=LIMIT)


def evaluate_run(scorer: Scorer, trained: TrainingResult, data: RunData, out: Path) -> dict[str, Any]:
    """Evaluate a run's generic model on the target and the benchmarks, and add the sites' metrics."""
    recipe, saved, personal = scorer.recipe, trained.saved, trained.personal
    if scorer.method.pooled and data.people is not None:
        personal = personal_of_merged(scorer, saved.finished, data.people)
    figures = evaluate_recognition(out, scorer, saved.finished, data.target, saved.thresholds)
    # The mean number of steps per epoch at a site; some methods do not count steps.
    steps = [count for row in read_lines(out / ROUNDS) for count in (row.get("steps") or {}).values()]
    epochs = recipe.training.local.epochs
    if data.benchmarks:
        figures["benchmarks"] = evaluate_benchmarks(scorer, saved.finished, data.benchmarks, saved.thresholds)
    return {
        **threshold_figures(recipe, saved.thresholds),
        **figures,
        "personal": personal_figures(recipe, personal),
        "steps_per_epoch": float(np.mean(steps)) / epochs if steps and epochs else None,
        "sites_heldout": trained.heldout,
        "counted": data.people.counted if data.people else {},
        **({"kept": trained.kept} if trained.kept else {}),
    }


def evaluate_recognition(
    out: Path | None,
    scorer: Scorer,
    finished: Message,
    target: View | None,
    thresholds: Mapping[str, Threshold],
    groups: Groups | None = None,
) -> dict[str, Any]:
    """Evaluate the generic model on the target's set, and write the files from which its metrics can be recomputed."""
    if target is None:
        return {}
    result = evaluate_generic(scorer, finished, target, thresholds, groups)
    figures = {"generic": result.figures} | ({} if result.by is None else {"by": result.by})
    if out is None:
        return figures
    fixed, items = result.pairs, result.items
    places, values = fixed.pairs.tolist(), fixed.similarity.tolist()
    _write_pairs(
        out / "scores.csv",
        ("first", "second", "same", "similarity"),
        [
            (items[a], items[b], int(same), f"{value:.9g}")
            for (a, b), same, value in zip(places, fixed.same, values, strict=True)
        ],
    )
    if result.listed is not None:
        pairs = result.listed.pairs
        columns = zip(pairs.first, pairs.second, pairs.same, pairs.fold, result.listed.similarity, strict=True)
        rows = [(items[a], items[b], int(same), int(fold) + 1, f"{value:.9g}") for a, b, same, fold, value in columns]
        _write_pairs(out / PAIRS, ("first", "second", "same", "fold", "similarity"), rows)
    write_tensors(out / SIMILARITIES, {name or "all": torch.from_numpy(c) for name, c in result.counts.items()})
    return figures


def _write_pairs(path: Path, titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    write_atomically(path, text.getvalue().encode())


def threshold_figures(recipe: Recipe, thresholds: Mapping[str, Threshold]) -> dict[str, Any]:
    """Return the decision threshold with its rule and its errors at the sites."""
    threshold = thresholds.get("") or next(iter(thresholds.values()), None)
    if threshold is None:
        return {"threshold_rule": f"source-fmr {recipe.evaluation.people.fmr:g}", "threshold": None}
    return {
        "threshold_rule": threshold.rule,
        "threshold": threshold.value,
        "threshold_source": {"fmr": threshold.far, "fnmr": threshold.frr},
        **({"operating_point": threshold.operating_point} if threshold.estimates else {}),
    }
