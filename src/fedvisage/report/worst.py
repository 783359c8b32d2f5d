"""The faces that a model judges worst, of bona fide images and of each species of attacks, with their scores.

A report is shared, and faces should not leave their owner with it: photographs are on it only if the recipe or the
caller says so, rendered people unless they say no. The images come from the set that the run was judged on, known by
its digest; where that is not on this machine, or the run was a federation's, there are none.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedvisage.base.errors import UserError
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import without_selection
from fedvisage.datasets.sources import place_of
from fedvisage.metrics.scores import Scores
from fedvisage.report.compare import SITE, USER
from fedvisage.report.run_files import Row, RunFiles

EACH = 4
SIDE = 128  # pixels: larger images are reduced
RENDERED = "synthetic "
"""How the source of a rendered set begins."""


@dataclass(frozen=True)
class Picture:
    """A face as part of a page, and what was decided about it."""

    address: str
    score: str
    wrong: bool


@dataclass(frozen=True)
class Worst:
    """Where the faces are from, and those of each kind, the worst first."""

    said: str
    kinds: tuple[tuple[str, tuple[Picture, ...]], ...]


def images_of(run: RunFiles, cache: Path, wanted: bool | None = None) -> Worst | None:
    """Return the worst images of a simulation's user, if they may be shown and are at hand."""
    section = run.recipe.get("report")
    said = section.get("images") if isinstance(section, dict) else None
    shown = said if wanted is None else wanted
    scores = run.user_scores
    simulated = any(place.startswith(SITE) for place in run.digests)
    if shown is False or scores is None or not simulated:
        return None
    found = _set_of(run, cache)
    if found is None and shown:
        return Worst("The set that the run was judged on is not at hand, so none of its images can be shown.", ())
    if found is None or (shown is None and not found.source.startswith(RENDERED)):
        return None
    model = str(np.unique(scores.model)[0])
    own = scores.where(scores.model == model)
    threshold = ((run.metrics.get("members") or {}).get(model) or run.metrics).get("threshold")
    kinds = tuple((name, pictures) for name, some in _kinds(own) if (pictures := _pictures(found, some, threshold)))
    return Worst(_described(found, run.recipe, model), kinds) if kinds else None


def _set_of(run: RunFiles, cache: Path) -> PreparedSet | None:
    """Open the set that the run was judged on, if it is here and still the same."""
    entry = (run.recipe.get("data") or {}).get("user")
    try:
        path = place_of(without_selection(str(entry))[0], cache) if entry else None
        found = PreparedSet.open(path) if path is not None else None
    except UserError:  # what was there once need not be a set any more, and a report does without
        return None
    return found if found is not None and found.digest == run.digests.get(USER) else None


def _kinds(scores: Scores) -> list[tuple[str, Scores]]:
    kinds = [("bona fide", scores.where(scores.label == 1))]
    species = np.unique(scores.species[scores.label == 0]).tolist()
    kinds += [(name or "attack", scores.where((scores.label == 0) & (scores.species == name))) for name in species]
    return [one for one in kinds if len(one[1])]


def worst_of(scores: Scores) -> list[int]:
    """Return which scores of one kind are worst, one a subject: bona fide that look like attacks, or the reverse."""
    order = np.argsort(scores.live if scores.label[0] == 1 else -scores.live, kind="stable").tolist()
    chosen: dict[str, int] = {}
    for index in order:
        chosen.setdefault(str(scores.subject[index] or scores.item[index]), index)
    return list(chosen.values())[:EACH]


def _pictures(found: PreparedSet, scores: Scores, threshold: float | None) -> tuple[Picture, ...]:
    places = {item: index for index, item in enumerate(found.rows.item.tolist())}
    pictures = []
    for index in worst_of(scores):
        place, score = places.get(str(scores.item[index])), float(scores.live[index])
        if place is not None:
            wrong = threshold is not None and (score >= threshold) != (scores.label[index] == 1)
            pictures.append(Picture(_address(np.array(found.images[place])), f"{score:+.2f}", bool(wrong)))
    return tuple(pictures)


def _address(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    if max(image.size) > SIDE:
        image = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _described(found: PreparedSet, recipe: Row, model: str) -> str:
    split = str((recipe.get("data") or {}).get("user_split") or "all")
    what = "Rendered people" if found.source.startswith(RENDERED) else "Photographs: mind who gets this page"
    shown = "at their own size" if found.size <= SIDE else f"at {SIDE} × {SIDE}"
    splits = "all splits" if split == "all" else f"split {split}"
    whose = f", scored by the model of {model}" if model else ""
    return f"Set {found.name}, {splits}, images of {found.size} × {found.size} pixels, {shown}{whose}. {what}."
