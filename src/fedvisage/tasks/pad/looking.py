"""What is looked at in a picture before a model scores it: the face is found and cut out, or there is a reason why not.

Nothing here needs torch: a device looks at pictures as `predict` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedvisage.datasets.importers.cropping import Cropped, crop_face, make_cropper, make_detector
from fedvisage.datasets.importers.report import BadFile
from fedvisage.faces.upright import Found, Image, find, is_grey
from fedvisage.metrics.scores import FloatArray
from fedvisage.metrics.threshold import Threshold
from fedvisage.progress import Steps
from fedvisage.tasks.pad.prediction import ATTACK, LIVE, Prediction, Predictions, probability
from fedvisage.tasks.pictures import Asked, looked_at, notes_of


@dataclass(frozen=True, eq=False)
class Seen:
    """What was seen of a picture: the crop to score, or a reason why there is none."""

    crop: Image | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    found: Found | None = None
    """The faces, where they were sought."""


Look = Callable[[Image], Seen]
Score = Callable[[Sequence[Image]], FloatArray]


def predictions(asked: Asked, look: Look, score: Score, threshold: Threshold, steps: Steps) -> Predictions:
    """Read pictures and look at them one by one, score their crops in batches."""
    said = list[Prediction]()
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
