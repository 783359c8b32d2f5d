"""Prediction on new images with a finished model and its stored threshold, and comparison of faces.

The steps are functions of arrays: ``face_cropper`` and ``face_aligner`` return functions that detect and crop the face
of an image or give the reason for a rejection; ``score_with`` returns a function that scores batches of such crops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Steps, discard_steps
from fedvisage.device.exported import CropShape
from fedvisage.device.predict import (
    TOO_FEW,
    FaceComparisons,
    InputPicture,
    InputPictures,
    Predictions,
    compare_crops,
    face_aligner,
    face_cropper,
    score_pictures,
)
from fedvisage.faces.align import Image
from fedvisage.federation.server import members_of, separate_models
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.similarity import Features, normalise
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.compute import report_nondeterminism
from fedvisage.tasks.finished_model import FinishedModel
from fedvisage.tasks.scoring import Logits, Scorer, as_logits, mean_score


@report_nondeterminism()
def compare_faces(
    model: FinishedModel,
    picture: InputPicture,
    against: InputPictures,
    *,
    member: str = "",
    crop: str = "face",
    steps: Steps = discard_steps,
) -> FaceComparisons:
    """Compare a face with one or many others, at the false match rate of the model's threshold.

    Crops are scored in batches.
    """
    if model.task != "recognition":
        raise UserError("--against", "this model detects attacks; leave --against out")
    scorer, saved = model.scorer, model.saved
    threshold = _load_member(scorer, saved.finished, saved.thresholds, member)
    size, threads = model.recipe.input.size, model.recipe.runtime.threads
    look = face_aligner(crop, size, threads)
    return compare_crops(picture, against, look, lambda crops: features_of(scorer, crops), threshold, steps)


def features_of(scorer: Scorer, crops: Sequence[Image]) -> Features:
    """Return the feature of each aligned face, at unit length."""
    return normalise(scorer.score_alone(crops).numpy())


def _load_member(
    scorer: Scorer, finished: dict[str, torch.Tensor], thresholds: dict[str, Threshold], member: str
) -> Threshold:
    """Load the requested member and return its threshold."""
    members = separate_models(scorer.method, finished)
    if member not in members:
        choice = ", ".join(sorted(members)) or "none"
        remedy = "this run has one model; leave --member out" if "" in members else f"choose one of {choice}"
        raise UserError("--member", remedy)
    if member not in thresholds:
        raise UserError("threshold", TOO_FEW)
    scorer.load(members[member])
    return thresholds[member]


@report_nondeterminism()
def predict(
    model: FinishedModel, asked: InputPictures, *, member: str = "", crop: str = "face", steps: Steps = discard_steps
) -> Predictions:
    """Score images: read and crop them one by one, score their crops in batches."""
    if model.task != "pad":
        raise UserError(
            "--against", "this model recognises people: name an image or a folder of images to compare with"
        )
    weights, threshold = _weights_and_threshold(model.scorer, model.saved.finished, model.saved.thresholds, member)
    shape = CropShape(model.margin, model.recipe.input.size)
    look, score = face_cropper(crop, [shape], model.recipe.runtime.threads), score_with(model.scorer, weights)
    return score_pictures(asked, look, lambda crops: score(list(crops[0])), threshold, steps)


def score_with(scorer: Scorer, finished: Message) -> Callable[[Sequence[Image]], Logits]:
    """Return the function that scores crops (H×W×3, RGB, of the network's size) with a finished model's weights."""
    members = [weights for _, weights in sorted(members_of(finished).items())]
    if len(members) == 1:
        scorer.load(members[0])
        return lambda crops: as_logits(scorer.score_alone(crops))

    def score(crops: Sequence[Image]) -> Logits:
        logits = []
        for weights in members:
            scorer.load(weights)
            logits.append(as_logits(scorer.score_alone(crops)))
        return mean_score(logits)

    return score


def _weights_and_threshold(
    scorer: Scorer, finished: Message, thresholds: dict[str, Threshold], member: str
) -> tuple[Message, Threshold]:
    members = members_of(finished)
    if scorer.method.members == "each":
        if member not in members:
            raise UserError("--member", f"this run has one model per site; choose one of {', '.join(sorted(members))}")
        finished, thresholds = members[member], {"": thresholds[member]} if member in thresholds else {}
    elif member:
        raise UserError("--member", "this run has one model; leave --member out")
    if "" not in thresholds:
        raise UserError(
            "threshold", "the model was evaluated with target-eer, an oracle; it has no threshold to predict with"
        )
    return finished, thresholds[""]
