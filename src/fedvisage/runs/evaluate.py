"""Evaluation of finished models on other data, and recounts of their BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_json
from fedvisage.base.progress import Reporter, Say, discard
from fedvisage.data.batches import View
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import OVERLAP, PUBLIC, SITE, TARGET, find_overlap, refuse_overlap
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, split_entry, splits_of
from fedvisage.datasets.sources import existing_set, resolve, without_part
from fedvisage.methods import read_method
from fedvisage.metrics.recorded import Metrics
from fedvisage.nn.compute import report_nondeterminism
from fedvisage.recipe import load
from fedvisage.runs.directory import DATA, METRICS, RECIPE, close_settings, recorded_settings
from fedvisage.runs.local_training import adoption
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.opened import Benchmark, check_entry, check_for_model, notice_of_set, verify_sets
from fedvisage.tasks.recognition.benchmarks import PLACE, check_unseen, share_of
from fedvisage.tasks.seal import write_sealed

EXACT = "training.statistics=exact"
"""The recipe change that a recount makes."""


def recount(trained: Path, out: Path, cache: Path, reporter: Reporter) -> Metrics:
    """Adopt the model of a finished run, compute exact BatchNorm statistics over the sites' images, and evaluate it.

    Nothing is trained; thresholds and metrics are new.
    """
    if not (trained / METRICS).exists():
        raise UserError(
            str(trained), "is not a finished run; name its directory, or finish it with `fedvisage run --resume`"
        )
    recipe = close_settings(load(trained / RECIPE, [EXACT], read_method), recorded_settings(trained))
    return run(Request(recipe, out, cache, resume=True, training=adoption(trained), report=True), reporter)


PUBLIC_SPLITS = ("train", "heldout")


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The model to evaluate, the cache directory, the checks, and the callbacks for notes and progress."""

    model: FinishedModel
    cache: Path
    checks: Checks
    say: Say
    course: Say


@dataclass(frozen=True, eq=False)
class _Target:
    """The set to evaluate on: its view, the digest of its data, and its overlap with the training data."""

    name: str
    view: View
    digest: str
    overlap: dict[str, Any]


@report_nondeterminism()
def evaluate(
    model: FinishedModel,
    data: str | None,
    cache: Path,
    out: Path | None = None,
    *,
    benchmarks: Mapping[str, str] | None = None,
    checks: Checks = USUAL,
    say: Say = discard,
    course: Say = discard,
) -> Metrics:
    """Evaluate a model on a set, by default the run's target; with ``out``, write metrics and scores there.

    ``benchmarks`` maps names to data entries. With it, the model is evaluated on these, and on a set only if ``data``
    names one. Unless ``checks`` allow it, a set is refused if its crops differ from those of the training data, or if a
    named set contains images of the training data, as far as the sites' sets are available.
    ``say`` receives notes on the result, ``course`` receives progress.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no result is overwritten")
    evaluation, task = _Evaluation(model, cache, checks, say, course), model.setup.task
    # All sets are opened and checked before the first image is scored.
    benchmark_sets, benchmark_overlap = _open_benchmarks(benchmarks, evaluation) if benchmarks else ({}, {})
    target = _open_target(data, evaluation) if data is not None or not benchmark_sets else None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Any] = {"method": model.recipe.method.name, "target": None, "seed": model.recipe.runtime.seed}
    if target is not None:
        sections["target"] = target.name
        sections |= task.evaluate_saved(model.scorer, model.saved, target.view, target.name, out)
    if benchmark_sets:
        sections |= task.evaluate_benchmarks(model.scorer, model.saved, benchmark_sets)
    metrics = Metrics.of(sections)
    if out is not None:
        digests = {f"{PLACE}{name}": benchmark.digest for name, benchmark in benchmark_sets.items()}
        write_json(out / DATA, digests if target is None else {**digests, TARGET: target.digest})
        if overlap := {**benchmark_overlap, **(target.overlap if target is not None else {})}:
            write_json(out / OVERLAP, overlap)
        write_sealed(out, metrics)
    return metrics


def _open_target(data: str | None, evaluation: _Evaluation) -> _Target:
    """Open the named set, or else the run's target, and check it against the model and its training data."""
    model, checks = evaluation.model, evaluation.checks
    recipe = model.recipe
    entry = data or recipe.data.target
    if entry is None:
        raise UserError("--data", "the run has no target; name a prepared set")
    name, part = without_part(entry)
    source, selection = split_entry(name)
    path = resolve(source, evaluation.cache, workers=recipe.runtime.threads, say=evaluation.course)
    prepared = PreparedSet.open(path).at_margin(model.margin)
    check_bytes(path, evaluation.cache, whole=checks.verify, say=evaluation.say)
    if prepared.size != recipe.input.size:
        raise UserError(
            entry,
            f"images are {prepared.size}×{prepared.size}, but the model expects "
            f"{recipe.input.size}×{recipe.input.size}",
        )
    model.setup.task.check_set(prepared, recipe, entry)
    for line in notice_of_set(prepared.crop, entry):
        evaluation.say(line)
    # A named set is evaluated as a whole; the recipe's split applies to the run's own target.
    view = View.of(prepared, None if data or recipe.data.target_split == "all" else recipe.data.target_split)
    view = select(share_of(view, part), selection, entry)
    overlap: dict[str, Any] = {}
    if data is not None:  # training has already checked the run's own target
        check_for_model(model.saved.crops, prepared.crop, entry, checks.allow_mixed_crops)
        places = {**_training_views(model, evaluation.cache), TARGET: (view,)}
        shared = find_overlap(places, evaluation.cache, evaluation.say).about(TARGET)
        for line in refuse_overlap(shared, checks.allow_overlap, prepared.name):
            evaluation.say(line)
        overlap = shared.as_json(checks.allow_overlap)
    return _Target(prepared.name, view, prepared.digest + (f" {part}" if part else ""), overlap)


def _open_benchmarks(
    benchmarks: Mapping[str, str], evaluation: _Evaluation
) -> tuple[dict[str, Benchmark], dict[str, Any]]:
    """Open the named benchmarks, and return them with their overlap with the training data, for ``overlap.json``."""
    model, cache = evaluation.model, evaluation.cache
    for name, entry in benchmarks.items():
        check_entry(entry, f"{PLACE}{name}", model.recipe.input.size)
    benchmark_sets = model.setup.task.open_benchmarks(benchmarks, model.recipe, cache, evaluation.course)
    if evaluation.checks.verify:
        verify_sets([benchmark.entry for benchmark in benchmark_sets.values()], cache, evaluation.say)
    trained_on = _training_views(model, cache)
    overlap = check_unseen(benchmark_sets, trained_on, model.saved.crops, cache, evaluation.say, evaluation.checks)
    return benchmark_sets, {"benchmarks": overlap}


def _training_views(model: FinishedModel, cache: Path) -> dict[str, list[View]]:
    """Return views of the training sets that are available; a model may have been copied without them."""
    data = model.recipe.data
    places = {f"{SITE}{name}": entry for name, entry in data.sites.items()}
    places |= {} if data.public is None else {PUBLIC: data.public}
    views = {}
    for place, entry in places.items():
        name, part = without_part(entry.strip())
        source, selection = split_entry(name)
        path = existing_set(source, cache)
        if path is None:
            continue
        prepared = PreparedSet.open(path).at_margin(model.margin)
        if selection.heldout is not None:
            views[place] = list(splits_of(prepared, selection, place))
            continue
        splits = PUBLIC_SPLITS if place == PUBLIC else model.setup.task.splits
        shares = [share_of(View.of(prepared, split), part) for split in splits]
        views[place] = [select(view, selection, place) for view in shares]
    return views
