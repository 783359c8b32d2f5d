"""Judging a finished model again, on other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvisage.data.batches import View
from fedvisage.data.checked import check_bytes
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, splits_of, without_selection
from fedvisage.datasets.sources import place_of, resolve, without_part
from fedvisage.errors import UserError
from fedvisage.files import write_json
from fedvisage.progress import Say, unheard
from fedvisage.runs.directory import DATA, METRICS
from fedvisage.tasks.crops import check_for_model, notice_of_set
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.overlap import OVERLAP, PUBLIC, SITE, USER, check_apart, look_for_overlap
from fedvisage.tasks.recognition.data import share_of

PUBLIC_SPLITS = ("train", "heldout")


def evaluate(
    model: FinishedModel,
    data: str | None,
    cache: Path,
    out: Path | None = None,
    *,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
    say: Say = unheard,
    course: Say = unheard,
) -> dict[str, Any]:
    """Judge a model on a set, its own user's unless one is named; with ``out``, write figures and scores there.

    The set must have been cropped as those were that the model was trained on, unless ``allow_mixed_crops``.
    Pictures of a named set that the model was trained on are refused unless ``allow_overlap``, as far as the sets of
    its sites are at hand; with ``verify`` every byte of the set is read and compared with its digest.
    ``say`` takes what to know of the result, ``course`` what is done meanwhile.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that no result is written over")
    recipe, task = model.recipe, model.setup.task
    entry = data or recipe.data.user
    if entry is None:
        raise UserError("--data", "the run has no user; name a prepared set")
    name, part = without_part(entry)
    source, meant = without_selection(name)
    path = resolve(source, cache, workers=recipe.runtime.threads, say=course)
    prepared = PreparedSet.open(path)
    check_bytes(path, cache, whole=verify, say=say)
    if prepared.size != recipe.input.size:
        raise UserError(entry, f"images are {prepared.size}×{prepared.size}, the model wants {recipe.input.size}")
    task.check_set(prepared, recipe, entry)
    for line in notice_of_set(prepared.crop, entry):
        say(line)
    if data is not None:
        check_for_model(model.saved.crops, prepared.crop, entry, allow_mixed_crops)
    view = View.of(prepared, None if data or recipe.data.user_split == "all" else recipe.data.user_split)
    view = select(share_of(view, part), meant, entry)
    overlap = None
    if data is not None:  # of its own user's it was known when it was trained
        overlap = look_for_overlap({**_trained_on(model, cache), USER: (view,)}, cache, say).about(USER)
        for line in check_apart(overlap, allow_overlap, prepared.name):
            say(line)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    figures = {"method": recipe.method.name, "user": prepared.name, "seed": recipe.runtime.seed}
    figures |= task.rejudge(model.scorer, model.saved, view, prepared.name, out)
    if out is not None:
        write_json(out / DATA, {"data.user": prepared.digest + (f" {part}" if part else "")})
        write_json(out / METRICS, figures)
        if overlap is not None:
            write_json(out / OVERLAP, overlap.as_json(allow_overlap))
    return figures


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
