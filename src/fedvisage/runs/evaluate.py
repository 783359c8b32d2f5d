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
from fedvisage.recipe import load
from fedvisage.runs.directory import DATA, METRICS, RECIPE, close_settings, recorded_settings
from fedvisage.runs.run import adoption, run_and_report
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.opened import Benchmark, check_entry, check_for_model, notice_of_set, verify_sets
from fedvisage.tasks.recognition.benchmarks import PLACE, check_unseen, share_of
from fedvisage.tasks.seal import write_sealed

EXACT = "training.statistics=exact"
"""The recipe change that a recount makes."""


def recount(trained: Path, out: Path, cache: Path, reporter: Reporter) -> dict[str, Any]:
    """Adopt the model of a finished run, compute exact BatchNorm statistics over the sites' images, and evaluate it.

    Nothing is trained; thresholds and metrics are new.
    """
    if not (trained / METRICS).exists():
        raise UserError(str(trained), "is no finished run; name its directory, or end it with `fedvisage run --resume`")
    recipe = close_settings(load(trained / RECIPE, [EXACT], read_method), recorded_settings(trained))
    return run_and_report(recipe, out, cache, reporter, training=adoption(trained), resume=True)


PUBLIC_SPLITS = ("train", "heldout")


@dataclass(frozen=True, eq=False)
class _EvaluationSettings:
    """The settings of an evaluation: model, cache directory, checks, and the callbacks for notes and progress."""

    model: FinishedModel
    cache: Path
    checks: Checks
    say: Say
    course: Say


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
) -> dict[str, Any]:
    """Evaluate a model on a set, by default the run's target; with ``out``, write metrics and scores there.

    ``benchmarks`` maps names to data entries. With it, the model is evaluated on these, and on a set only if ``data``
    names one. Unless ``checks`` allow it, a set is refused if its crops differ from those of the training data, or if a
    named set contains images of the training data, as far as the sites' sets are available.
    ``say`` receives notes on the result, ``course`` receives progress.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no result is written over")
    how = _EvaluationSettings(model, cache, checks, say, course)
    figures: dict[str, Any] = {"method": model.recipe.method.name, "user": None, "seed": model.recipe.runtime.seed}
    digests: dict[str, str] = {}
    overlap: dict[str, Any] = {}
    benchmark_sets = _open_benchmarks(benchmarks, how, overlap) if benchmarks else {}
    if data is not None or not benchmark_sets:
        figures |= _evaluate_set(data, how, out, digests, overlap)
    if benchmark_sets:
        figures |= model.setup.task.on_benchmarks(model.scorer, model.saved, benchmark_sets)
        digests |= {f"{PLACE}{name}": benchmark.digest for name, benchmark in benchmark_sets.items()}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / DATA, digests)
        if overlap:
            write_json(out / OVERLAP, overlap)
        write_sealed(out, figures)
    return figures


def _evaluate_set(
    data: str | None, how: _EvaluationSettings, out: Path | None, digests: dict[str, str], overlap: dict[str, Any]
) -> dict[str, Any]:
    """Evaluate on one set and return the metrics; fill in its digest and its overlap with the training data."""
    model = how.model
    recipe, task = model.recipe, model.setup.task
    entry = data or recipe.data.user
    if entry is None:
        raise UserError("--data", "the run has no user; name a prepared set")
    name, part = without_part(entry)
    source, selection = split_entry(name)
    path = resolve(source, how.cache, workers=recipe.runtime.threads, say=how.course)
    prepared = PreparedSet.open(path)
    check_bytes(path, how.cache, whole=how.checks.verify, say=how.say)
    if prepared.size != recipe.input.size:
        raise UserError(entry, f"images are {prepared.size}×{prepared.size}, the model wants {recipe.input.size}")
    task.check_set(prepared, recipe, entry)
    for line in notice_of_set(prepared.crop, entry):
        how.say(line)
    if data is not None:
        check_for_model(model.saved.crops, prepared.crop, entry, how.checks.allow_mixed_crops)
    # A named set is evaluated as a whole; the recipe's split applies to the run's own target.
    view = View.of(prepared, None if data or recipe.data.user_split == "all" else recipe.data.user_split)
    view = select(share_of(view, part), selection, entry)
    if data is not None:  # training has already checked the run's own target
        shared = find_overlap({**_training_views(model, how.cache), TARGET: (view,)}, how.cache, how.say).about(TARGET)
        for line in refuse_overlap(shared, how.checks.allow_overlap, prepared.name):
            how.say(line)
        overlap |= shared.as_json(how.checks.allow_overlap)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    figures = {"user": prepared.name, **task.rejudge(model.scorer, model.saved, view, prepared.name, out)}
    digests["data.user"] = prepared.digest + (f" {part}" if part else "")
    return figures


def _open_benchmarks(
    benchmarks: Mapping[str, str], how: _EvaluationSettings, overlap: dict[str, Any]
) -> dict[str, Benchmark]:
    """Open the named benchmarks, after checks of all their entries."""
    model = how.model
    for name, entry in benchmarks.items():
        check_entry(entry, f"{PLACE}{name}", model.recipe.input.size)
    benchmark_sets = model.setup.task.open_benchmarks(benchmarks, model.recipe, how.cache, how.course)
    if how.checks.verify:
        verify_sets([benchmark.entry for benchmark in benchmark_sets.values()], how.cache, how.say)
    overlap["benchmarks"] = check_unseen(
        benchmark_sets,
        _training_views(model, how.cache),
        model.saved.crops,
        how.cache,
        how.say,
        how.checks,
    )
    return benchmark_sets


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
        prepared = PreparedSet.open(path)
        if selection.heldout is not None:
            views[place] = list(splits_of(prepared, selection, place))
            continue
        splits = PUBLIC_SPLITS if place == PUBLIC else model.setup.task.seen
        shares = [share_of(View.of(prepared, split), part) for split in splits]
        views[place] = [select(view, selection, place) for view in shares]
    return views
