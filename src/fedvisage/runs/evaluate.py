"""Evaluation of finished models, exports and fused detectors on other data, and recounts of BatchNorm statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_json
from fedvisage.base.progress import Reporter, Say, discard
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.integrity import check_bytes
from fedvisage.data.left_out import read_left_out
from fedvisage.data.overlap import OVERLAP, PUBLIC, SITE, TARGET, find_overlap, refuse_overlap
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE, GROUP
from fedvisage.data.selection import select, split_entry, splits_of
from fedvisage.datasets.sources import existing_set, resolve, without_part
from fedvisage.device.exported import check_free
from fedvisage.device.fused import Model, members_of
from fedvisage.methods import read_method
from fedvisage.metrics import pad
from fedvisage.metrics.groups import PLACE as BY
from fedvisage.metrics.groups import Groups, read_groups
from fedvisage.metrics.intervals import intervals
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.scores import FloatArray, by_video, write_scores
from fedvisage.nn.compute import report_nondeterminism
from fedvisage.recipe import Evaluation, load
from fedvisage.runs.directory import DATA, METRICS, RECIPE, RunDirectory, close_settings
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.runs.train import adoption
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.opened import Benchmark, check_entry, check_for_model, notice_of_set, verify_sets
from fedvisage.tasks.pad.evaluation import as_scores, compare_attacks, threshold_figures
from fedvisage.tasks.pad.task import SCORES
from fedvisage.tasks.recognition.benchmarks import PLACE, check_unseen, share_of
from fedvisage.tasks.seal import write_sealed

AT_ONCE = 256
"""Images read at a time."""


@dataclass(frozen=True, eq=False)
class NamedSet:
    """A prepared set by its entry, the selected images, and the digest of its data."""

    entry: str
    prepared: PreparedSet
    view: View
    digest: str


def open_named(
    entry: str,
    cache: Path,
    *,
    model: FinishedModel | None = None,
    place: str = "",
    split: str | None = None,
    checks: Checks = USUAL,
    say: Say = discard,
    course: Say = discard,
) -> NamedSet:
    """Open the set of a data entry, all of it or one split, and render it into the cache if necessary.

    With ``model``, a finished run's, the crops have its margin, and the set must fit its recipe. Errors name ``place``,
    by default the entry. ``say`` receives notes on the set, ``course`` the progress of rendering.
    """
    place, (name, part) = place or entry, without_part(entry.strip())
    source, selection = split_entry(name)
    path = resolve(source, cache, workers=1 if model is None else model.recipe.runtime.threads, say=course)
    prepared = PreparedSet.open(path).at_margin(None if model is None else model.margin)
    check_bytes(path, cache, whole=checks.verify, say=say)
    if model is not None:
        size = model.recipe.input.size
        if prepared.size != size:
            fault = f"images are {prepared.size}×{prepared.size}, but the model expects {size}×{size}"
            raise UserError(place, f"{fault}; prepare the set at that size")
        model.setup.task.check_set(prepared, model.recipe, place)
    for line in notice_of_set(prepared.crop, entry):
        say(line)
    view = select(share_of(View.of(prepared, split), part), selection, place)
    return NamedSet(entry, prepared, view, prepared.digest + (f" {part}" if part else ""))


def check_set(model: Model, prepared: PreparedSet, place: str, *, allow_mixed_crops: bool | None = None) -> None:
    """Refuse a set without the crops of a member: other sizes, margins or ways of cropping."""
    for member in members_of(model):
        if prepared.size != member.size:
            raise UserError(
                place,
                f"images are {prepared.size}×{prepared.size}, but {member.directory} expects "
                f"{member.size}×{member.size}; import them at this size",
            )
        description = member.description
        trained = description.trained_on or (description.crop,)
        check_for_model(trained, prepared.at_margin(member.margin).crop, place, allow_mixed_crops)


def score_set(model: Model, view: View) -> FloatArray:
    """Return the logits of a view of one set."""
    (part,) = view.slices
    by_shape = [part.set.at_margin(shape.margin).images for shape in model.shapes]
    batches = [part.indices[start : start + AT_ONCE] for start in range(0, max(len(part.indices), 1), AT_ONCE)]
    return np.concatenate([model.score([np.array(images[batch]) for images in by_shape]) for batch in batches])


def left_out_of(named: NamedSet, at_video: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return how many files the set's import left out, and why; for attack detection also the rates of no response.

    Of detectors, presentations are counted. HTER then takes those without a response as errors, in both classes. A part
    of a set has no such rates, because its import counted the whole.
    """
    left_out = read_left_out(named.prepared.path)
    if left_out is None:
        return {}
    sections: dict[str, Any] = {"left_out": {"files": left_out.files, "reasons": left_out.reasons}}
    if at_video is None or left_out.unanswered is None or len(named.view) != len(named.prepared):
        return sections
    silent = Counter(left_out.unanswered)
    answered = Counter(
        {name: len(set(named.view.videos[named.view.species == name])) for name in {*named.view.species}}
    )
    shares = {name: silent[name] / (silent[name] + answered[name]) for name in sorted({*silent, *answered})}
    rates = []
    for rate, kinds in (("bpcer", {BONA_FIDE}), ("apcer_pooled", {*shares} - {BONA_FIDE})):
        unanswered, total = (sum(counts[kind] for kind in kinds) for counts in (silent, silent + answered))
        errors = (at_video[rate] or 0.0) * (total - unanswered) + unanswered
        rates.append(errors / total if total else None)
    both = None if None in rates else sum(rate for rate in rates if rate is not None) / 2
    bona_fide = shares.pop(BONA_FIDE, None)
    return {**sections, "bpnrr": bona_fide, "apnrr": shares, "hter_with_nonresponses": both}


def groups_in(named: NamedSet, by: str | None) -> Groups | None:
    """Group the images of a set by a further column, or in an identity set by the group of its people."""
    if by is None:
        return None
    view = named.view
    columns = {name: view.column(name) for name in view.columns}
    columns |= {GROUP: view.groups} if view.of_identities else {}
    return read_groups(by, columns, named.entry)


def evaluate_export(
    model: Model,
    data: str,
    cache: Path,
    out: Path | None = None,
    *,
    by: str | None = None,
    checks: Checks = USUAL,
    say: Say = discard,
) -> Metrics:
    """Evaluate an exported or fused detector on a prepared set; with ``out``, write metrics and scores there."""
    if model.task != "pad" or model.threshold is None:
        raise UserError(str(model.directory), "is no detector with a threshold; evaluate the run that it came from")
    if out is not None:
        check_free(out)
    named = open_named(data, cache, checks=checks, say=say, course=say)
    check_set(model, named.prepared, data, allow_mixed_crops=checks.allow_mixed_crops)
    groups = groups_in(named, by)
    name, threshold = named.prepared.name, model.threshold
    scores = as_scores(score_set(model, named.view), named.view, name, "")
    scores_by_video = by_video(scores)
    sections: dict[str, Any] = {
        "method": model.method,
        "target": name,
        "model_sha256": model.digest,
        **threshold_figures(threshold),
        "level": "frame",
        **pad.evaluate(scores, threshold.value),
        "video": pad.evaluate(scores_by_video, threshold.value),
        "intervals": {
            level: intervals(
                scored, threshold.value, Evaluation().resamples, numpy_rng(0, "bootstrap", level)
            ).as_json()
            for level, scored in (("frame", scores), ("video", scores_by_video))
        },
    }
    if groups is not None:
        sections["by"] = compare_attacks(scores, threshold.value, sections["level"], groups)
    metrics = Metrics.of({**sections, **left_out_of(named, sections["video"])})
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_scores(out / SCORES, scores)
        write_json(out / DATA, {TARGET: named.digest})
        write_sealed(out, metrics)
    return metrics


# Finished models.


def recount(trained: Path, out: Path, cache: Path, reporter: Reporter) -> Metrics:
    """Adopt the model of a finished run, compute exact BatchNorm statistics over the sites' images, and evaluate it.

    Nothing is trained; thresholds and metrics are new.
    """
    if not (trained / METRICS).exists():
        raise UserError(
            str(trained), "is not a finished run; name its directory, or finish it with `fedvisage run --resume`"
        )
    recipe = load(trained / RECIPE, ["training.statistics=exact"], read_method)
    recipe = close_settings(recipe, RunDirectory(trained).settings)
    return run(Request(recipe, out, cache, resume=True, training=adoption(trained), report=True), reporter)


@report_nondeterminism()
def evaluate(
    model: FinishedModel,
    data: str | None,
    cache: Path,
    out: Path | None = None,
    *,
    benchmarks: Mapping[str, str] | None = None,
    by: str | None = None,
    checks: Checks = USUAL,
    say: Say = discard,
    course: Say = discard,
) -> Metrics:
    """Evaluate a model on a set, by default the run's target; with ``out``, write metrics and scores there.

    ``benchmarks`` maps names to data entries. With it, the model is evaluated on these, and on a set only if ``data``
    names one. ``by`` is a column of this set, whose groups are compared. Unless ``checks`` allow it, a set is refused
    if its crops differ from those of the training data, or if a named set contains images of the training data, as far
    as the sites' sets are available.
    ``say`` receives notes on the result, ``course`` receives progress.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no result is overwritten")
    if by is not None and benchmarks and data is None:
        raise UserError(BY, "applies to the set of --data; name one")
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
    if by is not None and model.setup.method.members == "each":
        raise UserError(BY, f"compares groups by one model, and {model.recipe.method.name} has one per site")
    groups = None if target is None else groups_in(target, by)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    sections: dict[str, Any] = {"method": model.recipe.method.name, "target": None, "seed": model.recipe.runtime.seed}
    if target is not None:
        sections["target"] = target.prepared.name
        sections |= task.evaluate_saved(model.scorer, model.saved, target.view, target.prepared.name, out, groups)
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
        splits = ("train", "heldout") if place == PUBLIC else model.setup.task.splits
        shares = [share_of(View.of(prepared, split), part) for split in splits]
        views[place] = [select(view, selection, place) for view in shares]
    return views
