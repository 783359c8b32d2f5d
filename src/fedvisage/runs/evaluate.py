"""Judging a finished model again, on other data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_json
from fedvisage.base.progress import Reporter, Say, unheard
from fedvisage.data.batches import View
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import OVERLAP, PUBLIC, SITE, USER, check_apart, look_for_overlap
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, splits_of, without_selection
from fedvisage.datasets.sources import place_of, resolve, without_part
from fedvisage.methods import read_method
from fedvisage.recipe import load
from fedvisage.runs.directory import DATA, METRICS, RECIPE
from fedvisage.runs.run import adopting, run_and_report
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.opened import Benchmark, check_entry, check_for_model, notice_of_set, verify_sets
from fedvisage.tasks.recognition.benchmarks import PLACE, check_unseen, share_of
from fedvisage.tasks.seal import write_sealed

# A finished run again with exact BatchNorm statistics: nothing is trained, thresholds and figures are new.


EXACT = "training.statistics=exact"


def recount(trained: Path, out: Path, cache: Path, reporter: Reporter) -> dict[str, Any]:
    """Take over the model of a finished run, count its statistics over the sites' images, and judge it again."""
    if not (trained / METRICS).exists():
        raise UserError(str(trained), "is no finished run; name its directory, or end it with `fedvisage run --resume`")
    recipe = load(trained / RECIPE, [EXACT], read_method)
    return run_and_report(recipe, out, cache, reporter, training=adopting(trained), resume=True)


PUBLIC_SPLITS = ("train", "heldout")


@dataclass(frozen=True, eq=False)
class _Judging:
    """How a set is to be judged: by which model, where things are kept, what is allowed, and who listens."""

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
    say: Say = unheard,
    course: Say = unheard,
) -> dict[str, Any]:
    """Judge a model on a set, its own user's unless one is named; with ``out``, write figures and scores there.

    With ``benchmarks``, data entries by name, it is judged on these, and on a set besides if one is named.
    Unless ``checks`` allow it, sets are refused that were cropped otherwise than those that the model was trained on,
    and so are pictures of a named set that it was trained on, as far as the sets of its sites are at hand.
    ``say`` takes what to know of the result, ``course`` what is done meanwhile.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no result is written over")
    how = _Judging(model, cache, checks, say, course)
    figures: dict[str, Any] = {"method": model.recipe.method.name, "user": None, "seed": model.recipe.runtime.seed}
    digests: dict[str, str] = {}
    overlap: dict[str, Any] = {}
    others = _opened(benchmarks, how, overlap) if benchmarks else {}
    if data is not None or not others:
        figures |= _on_set(data, how, out, digests, overlap)
    if others:
        figures |= model.setup.task.on_benchmarks(model.scorer, model.saved, others)
        digests |= {f"{PLACE}{name}": one.digest for name, one in others.items()}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / DATA, digests)
        if overlap:
            write_json(out / OVERLAP, overlap)
        write_sealed(out, figures)
    return figures


def _on_set(
    data: str | None, how: _Judging, out: Path | None, digests: dict[str, str], overlap: dict[str, Any]
) -> dict[str, Any]:
    """Judge on one set and return the figures; its digest and what it has in common with training are filled in."""
    model = how.model
    recipe, task = model.recipe, model.setup.task
    entry = data or recipe.data.user
    if entry is None:
        raise UserError("--data", "the run has no user; name a prepared set")
    name, part = without_part(entry)
    source, meant = without_selection(name)
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
    view = View.of(prepared, None if data or recipe.data.user_split == "all" else recipe.data.user_split)
    view = select(share_of(view, part), meant, entry)
    if data is not None:  # of its own user's it was known when it was trained
        found = look_for_overlap({**_trained_on(model, how.cache), USER: (view,)}, how.cache, how.say).about(USER)
        for line in check_apart(found, how.checks.allow_overlap, prepared.name):
            how.say(line)
        overlap |= found.as_json(how.checks.allow_overlap)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    figures = {"user": prepared.name, **task.rejudge(model.scorer, model.saved, view, prepared.name, out)}
    digests["data.user"] = prepared.digest + (f" {part}" if part else "")
    return figures


def _opened(benchmarks: Mapping[str, str], how: _Judging, overlap: dict[str, Any]) -> dict[str, Benchmark]:
    """Open the benchmarks that are named, and say first what is wrong with them."""
    model = how.model
    for name, entry in benchmarks.items():
        check_entry(entry, f"{PLACE}{name}", model.recipe.input.size)
    found = model.setup.task.open_benchmarks(benchmarks, model.recipe, how.cache, how.course)
    if how.checks.verify:
        verify_sets([one.entry for one in found.values()], how.cache, how.say)
    overlap["benchmarks"] = check_unseen(
        found, _trained_on(model, how.cache), model.saved.crops, how.cache, how.say,
        how.checks,
    )  # fmt: skip
    return found


def _trained_on(model: FinishedModel, cache: Path) -> dict[str, list[View]]:
    """View what is at hand of the sets that a model was trained on: a model may have travelled without them."""
    data = model.recipe.data
    places = {f"{SITE}{name}": entry for name, entry in data.sites.items()}
    places |= {} if data.public is None else {PUBLIC: data.public}
    found = {}
    for place, entry in places.items():
        name, part = without_part(entry.strip())
        source, meant = without_selection(name)
        path = place_of(source, cache)
        if path is None:
            continue
        prepared = PreparedSet.open(path)
        if meant.heldout is not None:
            found[place] = list(splits_of(prepared, meant, place))
            continue
        splits = PUBLIC_SPLITS if place == PUBLIC else model.setup.task.seen
        views = [share_of(View.of(prepared, split), part) for split in splits]
        found[place] = [select(view, meant, place) for view in views]
    return found
