"""Comparing faces with a finished recognition model: one person or two, at the false match rate of its threshold."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedvisage.errors import UserError
from fedvisage.faces.align import Image
from fedvisage.federation.members import members_of
from fedvisage.metrics.similarity import Features, unit
from fedvisage.metrics.threshold import Threshold
from fedvisage.progress import Steps, unwatched
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.pictures import Asked, Picture
from fedvisage.tasks.recognition.matches import TOO_FEW, Matches, look_for, matches
from fedvisage.tasks.scoring import Scorer


def compare_faces(
    model: FinishedModel,
    picture: Picture,
    against: Asked,
    *,
    member: str = "",
    crop: str = "face",
    steps: Steps = unwatched,
) -> Matches:
    """Compare a face with another one, or with each of many; crops are scored in batches."""
    if model.task != "recognition":
        raise UserError("--against", "this model detects attacks; leave --against out")
    scorer, saved = model.scorer, model.saved
    threshold = _ready(scorer, saved.finished, saved.thresholds, member)
    size, threads = model.recipe.input.size, model.recipe.runtime.threads
    look = look_for(crop, size, threads)
    return matches(picture, against, look, lambda crops: features_of(scorer, crops), threshold, steps)


def features_of(scorer: Scorer, crops: Sequence[Image]) -> Features:
    """Return the feature of each aligned face, at unit length."""
    return unit(scorer.score_alone(crops).numpy())


def _ready(
    scorer: Scorer, finished: dict[str, torch.Tensor], thresholds: dict[str, Threshold], member: str
) -> Threshold:
    """Load the model that is asked for and return its threshold."""
    members = members_of(finished)
    if member not in members:
        choice = ", ".join(sorted(members)) or "none"
        said = "this run has one model; leave --member out" if "" in members else f"choose one of {choice}"
        raise UserError("--member", said)
    if member not in thresholds:
        raise UserError("threshold", TOO_FEW)
    scorer.load(members[member])
    return thresholds[member]
