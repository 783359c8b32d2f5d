"""Evaluation of finished models on other data, and recounts of their BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_json
from fedvisage.base.progress import Reporter, Say, discard
from fedvisage.data.batches import View
from fedvisage.data.overlap import OVERLAP, PUBLIC, SITE, TARGET, find_overlap, refuse_overlap
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, split_entry, splits_of
from fedvisage.datasets.sources import existing_set, without_part
from fedvisage.methods import read_method
from fedvisage.metrics.recorded import Metrics
from fedvisage.nn.compute import report_nondeterminism
from fedvisage.recipe import load
from fedvisage.runs.directory import DATA, METRICS, RECIPE, RunDirectory, close_settings
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.runs.score_set import left_out_of, open_named
from fedvisage.runs.train import adoption
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.opened import Benchmark, check_entry, check_for_model, verify_sets
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
    recipe = close_settings(load(trained / RECIPE, [EXACT], read_method), RunDirectory(trained).settings)
    return run(Request(recipe, out, cache, resume=True, training=adoption(trained), report=True), reporter)


PUBLIC_SPLITS = ("train", "heldout")


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
    task, entry = model.setup.task, data or model.recipe.data.target
    target, benchmark_sets, overlap = None, dict[str, Benchmark](), dict[str, Any]()
    # All sets are opened and checked before the first image is scored.
    if benchmarks:
        for name, source in benchmarks.items():
            check_entry(source, f"{PLACE}{name}", model.recipe.input.size)
        benchmark_sets = task.open_benchmarks(benchmarks, model.recipe, cache, course)
        if checks.verify:
            verify_sets([benchmark.entry for benchmark in benchmark_sets.values()], cache, say)
        trained_on = _training_views(model, cache)
        overlap["benchmarks"] = check_unseen(benchmark_sets, trained_on, model.saved.crops, cache, say, checks)
    if data is not None or not benchmark_sets:
        if entry is None:
            raise UserError("--data", "the run has no target; name a prepared set")
        # A named set is evaluated as a whole; the recipe's split applies to the run's own target.
        split = model.recipe.data.target_split if data is None else "all"
        target = open_named(
            entry, cache, model=model, split=None if split == "all" else split, checks=checks, say=say, course=course
        )
    if target is not None and data is not None:  # training has already checked the run's own target
        check_for_model(model.saved.crops, target.prepared.crop, target.entry, checks.allow_mixed_crops)
        places = {**_training_views(model, cache), TARGET: (target.view,)}
        shared = find_overlap(places, cache, say).about(TARGET)
        for line in refuse_overlap(shared, checks.allow_overlap, target.prepared.name):
            say(line)
        overlap |= shared.as_json(checks.allow_overlap)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Any] = {"method": model.recipe.method.name, "target": None, "seed": model.recipe.runtime.seed}
    if target is not None:
        sections["target"] = target.prepared.name
        sections |= task.evaluate_saved(model.scorer, model.saved, target.view, target.prepared.name, out)
        figures = sections if sections.get("level") == "video" else sections.get("video")
        sections |= left_out_of(target, figures)
    if benchmark_sets:
        sections |= task.evaluate_benchmarks(model.scorer, model.saved, benchmark_sets)
    metrics = Metrics.of(sections)
    if out is not None:
        digests = {f"{PLACE}{name}": benchmark.digest for name, benchmark in benchmark_sets.items()}
        write_json(out / DATA, digests if target is None else {**digests, TARGET: target.digest})
        if overlap:
            write_json(out / OVERLAP, overlap)
        write_sealed(out, metrics)
    return metrics


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
