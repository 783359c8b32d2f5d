"""Prediction on new images with a finished model and its stored threshold, and comparison of faces.

The steps are functions of arrays: ``face_cropper`` and ``face_aligner`` return functions that detect and crop the face
of an image or give the reason for a rejection; ``score_with`` returns a function that scores batches of such crops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Steps, discard_steps
from fedvisage.data.crops import RENDERED_ONLY, are_all_rendered
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
from fedvisage.faces.cropping import choose_detector, detector_of
from fedvisage.federation.server import members_of, separate_models
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.similarity import Features, normalise
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
    detector: str = "",
    steps: Steps = discard_steps,
) -> FaceComparisons:
    """Compare a face with one or many others, at the false match rate of the model's threshold.

    Crops are scored in batches.
    """
    if model.task != "recognition":
        raise UserError("--against", "this model detects attacks; leave --against out")
    scorer, thresholds = model.scorer, model.saved.thresholds
    members = separate_models(scorer.method, model.saved.finished)
    if member not in members:
        choice = ", ".join(sorted(members)) or "none"
        remedy = "this run has one model; leave --member out" if "" in members else f"choose one of {choice}"
        raise UserError("--member", remedy)
    if member not in thresholds:
        raise UserError("threshold", TOO_FEW)
    scorer.load(members[member])
    chosen = choose_detector(detector or detector_of(model.saved.crops))
    find_face = face_aligner(crop, model.recipe.input.size, model.recipe.runtime.threads, detector=chosen)
    return compare_crops(
        picture, against, find_face, lambda crops: features_of(scorer, crops), thresholds[member], steps
    )


def features_of(scorer: Scorer, crops: Sequence[Image]) -> Features:
    """Return the feature of each aligned face, at unit length."""
    return normalise(scorer.score_alone(crops).numpy())


@report_nondeterminism()
def predict(
    model: FinishedModel,
    pictures: InputPictures,
    *,
    member: str = "",
    crop: str = "face",
    strict: bool = False,
    detector: str = "",
    steps: Steps = discard_steps,
) -> Predictions:
    """Score images: read and crop them one by one, score their crops in batches."""
    if model.task != "pad":
        raise UserError(
            "--against", "this model recognises people: name an image or a folder of images to compare with"
        )
    weights, thresholds = weights_of(model, member), model.saved.thresholds
    if member not in thresholds:
        raise UserError(
            "threshold", "the model was evaluated with target-eer, an oracle; it has no threshold to predict with"
        )
    shape = CropShape(model.margin, model.recipe.input.size)
    chosen = choose_detector(detector or detector_of(model.saved.crops))
    find_face = face_cropper(crop, [shape], model.recipe.runtime.threads, strict=strict, detector=chosen)
    score = score_with(model.scorer, weights)
    notes = (RENDERED_ONLY,) if are_all_rendered(model.saved.crops) else ()
    return score_pictures(pictures, find_face, lambda crops: score(list(crops[0])), thresholds[member], steps, notes)


def weights_of(model: FinishedModel, member: str) -> Message:
    """Return the weights of the run's only model, or of the model of a site."""
    models = separate_models(model.scorer.method, model.saved.finished)
    if member not in models:
        per_site = f"this run has one model per site; choose one of {', '.join(sorted(models))}"
        raise UserError("--member", "this run has one model; leave --member out" if "" in models else per_site)
    return models[member]


def score_with(scorer: Scorer, finished: Message) -> Callable[[Sequence[Image]], Logits]:
    """Return the function that scores crops (H×W×3, RGB, of the network's size) with a finished model's weights."""
    members = [weights for _, weights in sorted(members_of(finished).items())]
    scorer.load(members[0])

    def score(crops: Sequence[Image]) -> Logits:
        if len(members) == 1:
            return as_logits(scorer.score_alone(crops))
        logits = []
        for weights in members:
            scorer.load(weights)
            logits.append(as_logits(scorer.score_alone(crops)))
        return mean_score(logits)

    return score
