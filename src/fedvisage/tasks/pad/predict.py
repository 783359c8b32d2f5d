"""Scoring new pictures with a finished model and its stored threshold, or saying why a picture is rejected.

The steps are functions of arrays: ``look_for`` gives the one that finds the face of a picture and cuts it out,
``score_with`` the one that scores such crops, many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedvisage.datasets.importers.cropping import Cropped, crop_face, make_cropper, make_detector
from fedvisage.datasets.importers.report import BadFile
from fedvisage.errors import UserError
from fedvisage.faces.upright import Found, Image, find, is_grey
from fedvisage.federation.members import members_of
from fedvisage.federation.method import Message
from fedvisage.metrics.threshold import Threshold
from fedvisage.progress import Steps, unwatched
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.pad.prediction import ATTACK, LIVE, Prediction, Predictions, probability
from fedvisage.tasks.pictures import Asked, looked_at, notes_of
from fedvisage.tasks.scoring import Logits, Scorer, as_logits, mean_score


@dataclass(frozen=True, eq=False)
class Seen:
    """What was seen of a picture: the crop to score, or a reason why there is none."""

    crop: Image | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    found: Found | None = None
    """The faces, where they were sought."""


Look = Callable[[Image], Seen]
Score = Callable[[Sequence[Image]], Logits]


def predict(
    model: FinishedModel, asked: Asked, *, member: str = "", crop: str = "face", steps: Steps = unwatched
) -> Predictions:
    """Score pictures: read and look at them one by one, score their crops in batches."""
    if model.task != "pad":
        raise UserError(
            "--against", "this model recognises people: name a picture, or a folder of them, to compare with"
        )
    finished, threshold = _chosen(model.scorer, model.saved.finished, model.saved.thresholds, member)
    look = look_for(crop, model.recipe.input.size, model.recipe.runtime.threads)
    score, said = score_with(model.scorer, finished), list[Prediction]()
    for portion in looked_at(asked.pictures, look, steps):
        seen = [(name, Seen(reason=str(one)) if isinstance(one, BadFile) else one) for name, one in portion]
        crops = [one.crop for _, one in seen if one.crop is not None]
        logits = iter(score(crops).tolist() if crops else [])
        said += [_prediction(name, one, None if one.crop is None else next(logits), threshold) for name, one in seen]
    return Predictions(threshold, said, asked.passed_over)


def look_for(crop: str, size: int, threads: int = 1) -> Look:
    """Return the function that cuts the face out of a picture in the named way; ``threads`` are for the detector."""
    if crop != "face":
        cut = make_cropper(crop, size, threads)  # type: ignore[arg-type]  # it refuses other words itself
        return lambda picture: _seen(cut(picture), None)
    detect = make_detector(threads)

    def look(picture: Image) -> Seen:
        found = find(picture, detect)
        if not found.faces:
            return Seen(reason="no face found", found=found)
        return _seen(crop_face(found.picture, found.faces, size), found)

    return look


def score_with(scorer: Scorer, finished: Message) -> Score:
    """Return the function that scores crops (H×W×3, RGB, of the network's size) with a finished model's weights."""
    members = [one for _, one in sorted(members_of(finished).items())]
    if len(members) == 1:
        scorer.load(members[0])
        return lambda crops: as_logits(scorer.score_alone(crops))

    def score(crops: Sequence[Image]) -> Logits:
        logits = []
        for one in members:
            scorer.load(one)
            logits.append(as_logits(scorer.score_alone(crops)))
        return mean_score(logits)

    return score


def _seen(cropped: Cropped, found: Found | None) -> Seen:
    notes = notes_of(found, grey=is_grey(cropped.image))
    if cropped.upscaled:
        reason = "the face is too small: enlarging it would blur what tells attacks apart"
        return Seen(None, reason, notes, found)
    return Seen(cropped.image, "", notes, found)


def _prediction(name: str, seen: Seen, logit: float | None, threshold: Threshold) -> Prediction:
    faces, boxes = (None, None) if seen.found is None else (len(seen.found.faces), seen.found.boxes)
    if logit is None:
        return Prediction(name, reason=seen.reason, notes=seen.notes, faces=faces, boxes=boxes)
    decision = LIVE if logit >= threshold.value else ATTACK
    return Prediction(name, probability(logit), logit, decision, "", seen.notes, faces, boxes)


def _chosen(
    scorer: Scorer, finished: Message, thresholds: dict[str, Threshold], member: str
) -> tuple[Message, Threshold]:
    members = members_of(finished)
    if scorer.method.members == "each":
        if member not in members:
            raise UserError("--member", f"this run has one model a site; choose one of {', '.join(sorted(members))}")
        finished, thresholds = members[member], {"": thresholds[member]} if member in thresholds else {}
    elif member:
        raise UserError("--member", "this run has one model; leave --member out")
    if "" not in thresholds:
        raise UserError(
            "threshold", "the model was judged with target-eer, an oracle; it has no threshold to predict with"
        )
    return finished, thresholds[""]
