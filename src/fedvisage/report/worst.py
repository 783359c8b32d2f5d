"""The worst-scored faces of a report: bona fide images and attacks of each species, with their scores.

Readers share reports, and faces should not leave their owner with them: a report shows photographs only if the recipe
or the caller asks for them, and rendered people unless they opt out. The images come from the set of the evaluation,
identified by its digest. If that set is not on this machine, or the run was a federation's, there are no images.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedvisage.base.errors import UserError
from fedvisage.data.overlap import SITE, TARGET
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import split_entry
from fedvisage.datasets.sources import existing_set
from fedvisage.metrics.scores import Scores
from fedvisage.report.content import threshold_of
from fedvisage.report.run_files import Row, RunFiles

EACH = 4
SIDE = 128  # pixels: larger images are reduced
RENDERED = "synthetic "
"""Start of the ``source`` of every rendered set."""


@dataclass(frozen=True)
class WorstImage:
    """A face as part of a page, with its score and whether the decision was wrong."""

    address: str
    score: str
    wrong: bool


@dataclass(frozen=True)
class WorstImages:
    """A description of the source set, and the faces of each kind, the worst first."""

    description: str
    kinds: tuple[tuple[str, tuple[WorstImage, ...]], ...]


def images_of(run: RunFiles, cache: Path, wanted: bool | None = None) -> WorstImages | None:
    """Return the worst images of a simulation's target, if they may be shown and the set is available."""
    section = run.recipe.get("report")
    requested = section.get("images") if isinstance(section, dict) else None
    show = requested if wanted is None else wanted
    scores = run.target_scores
    simulated = any(place.startswith(SITE) for place in run.digests)
    if show is False or scores is None or not simulated:
        return None
    target_set = _set_of(run, cache)
    if target_set is None and show:
        return WorstImages("The set that the run was evaluated on is not available, so its images cannot be shown.", ())
    if target_set is None or (show is None and not target_set.source.startswith(RENDERED)):
        return None
    model = str(np.unique(scores.model)[0])
    model_scores = scores.where(scores.model == model)
    threshold = threshold_of(run.metrics, model)
    kinds = tuple(
        (name, pictures)
        for name, kind_scores in _kinds(model_scores)
        if (pictures := _pictures(target_set, kind_scores, threshold))
    )
    return WorstImages(_describe_source(target_set, run.recipe, model), kinds) if kinds else None


def _set_of(run: RunFiles, cache: Path) -> PreparedSet | None:
    """Open the set of the evaluation, if it is on this machine and unchanged."""
    entry = (run.recipe.get("data") or {}).get("target")
    try:
        path = existing_set(split_entry(str(entry))[0], cache) if entry else None
        margin = (run.recipe.get("input") or {}).get("margin")
        target_set = PreparedSet.open(path).at_margin(margin) if path is not None else None
    except UserError:  # the set may have been removed or damaged since, and the report works without it
        return None
    return target_set if target_set is not None and target_set.digest == run.digests.get(TARGET) else None


def _kinds(scores: Scores) -> list[tuple[str, Scores]]:
    kinds = [("bona fide", scores.where(scores.label == 1))]
    species = np.unique(scores.species[scores.label == 0]).tolist()
    kinds += [(name or "attack", scores.where((scores.label == 0) & (scores.species == name))) for name in species]
    return [kind for kind in kinds if len(kind[1])]


def worst_of(scores: Scores) -> list[int]:
    """Return the worst scores of one kind, one per subject: bona fide that look like attacks, or the reverse."""
    order = np.argsort(scores.live if scores.label[0] == 1 else -scores.live, kind="stable").tolist()
    chosen: dict[str, int] = {}
    for index in order:
        chosen.setdefault(str(scores.subject[index] or scores.item[index]), index)
    return list(chosen.values())[:EACH]


def _pictures(prepared: PreparedSet, scores: Scores, threshold: float | None) -> tuple[WorstImage, ...]:
    places = {item: index for index, item in enumerate(prepared.rows.item.tolist())}
    pictures = []
    for index in worst_of(scores):
        place, score = places.get(str(scores.item[index])), float(scores.live[index])
        if place is not None:
            wrong = threshold is not None and (score >= threshold) != (scores.label[index] == 1)
            image = Image.fromarray(np.array(prepared.images[place]))
            if max(image.size) > SIDE:
                image = image.resize((SIDE, SIDE), Image.Resampling.BOX)
            file = io.BytesIO()
            image.save(file, format="PNG", optimize=True)
            address = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
            pictures.append(WorstImage(address, f"{score:+.2f}", bool(wrong)))
    return tuple(pictures)


def _describe_source(prepared: PreparedSet, recipe: Row, model: str) -> str:
    split = str((recipe.get("data") or {}).get("target_split") or "all")
    kind = (
        "Rendered people" if prepared.source.startswith(RENDERED) else "Photographs: take care who receives this page"
    )
    scale = "at their original size" if prepared.size <= SIDE else f"at {SIDE} × {SIDE}"
    splits = "all splits" if split == "all" else f"split {split}"
    scorer = f", scored by the model of {model}" if model else ""
    return (
        f"Set {prepared.name}, {splits}, images of {prepared.size} × {prepared.size} pixels, {scale}{scorer}. {kind}."
    )
