"""Scoring new images with a finished model and its stored threshold, or saying why an image is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvisage.datasets.importers.cropping import Cropper, make_cropper
from fedvisage.datasets.importers.pictures import ENDINGS, open_picture
from fedvisage.datasets.importers.report import BadFile
from fedvisage.errors import UserError
from fedvisage.federation.members import members_of
from fedvisage.federation.method import Message
from fedvisage.metrics.threshold import Threshold
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.scoring import Scorer, mean_score


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image; without a score there is a reason."""

    path: str
    probability: float | None = None
    logit: float | None = None
    decision: str = "rejected"
    reason: str = ""


@dataclass(frozen=True)
class Predictions:
    """What the model says of some images, and the threshold by which it decided."""

    threshold: Threshold
    images: list[Prediction]

    def as_values(self) -> dict[str, Any]:
        """Return both as plain values, for programs."""
        t = self.threshold
        rule = {"rule": t.rule, "logit": t.value, "far": t.far, "frr": t.frr}
        return {"threshold": rule, "images": [asdict(one) for one in self.images]}

    def lines(self) -> list[str]:
        """Return both as lines, for people."""
        return [_operating_point(self.threshold), *map(_line, self.images)]


def predict(model: FinishedModel, path: Path, *, member: str = "", crop: str = "face") -> Predictions:
    """Score an image, or the images of a folder."""
    if model.task != "pad":
        raise UserError(
            "--against", "this model recognises people: name a picture, or a folder of them, to compare with"
        )
    scorer, saved = model.scorer, model.saved
    size, threads = model.recipe.input.size, model.recipe.runtime.threads
    cropper = make_cropper(crop, size, threads)  # type: ignore[arg-type]  # it refuses other words itself
    finished, threshold = _chosen(scorer, saved.finished, saved.thresholds, member)
    return Predictions(threshold, [_predict(scorer, finished, threshold, image, cropper) for image in images_at(path)])


def _line(one: Prediction) -> str:
    score = "" if one.probability is None else f"live {one.probability:7.4f}  logit {one.logit:+.3f}  "
    return f"{one.decision:9}{score}{one.path}{'  ' + one.reason if one.reason else ''}"


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


def _predict(scorer: Scorer, finished: Message, threshold: Threshold, path: Path, cropper: Cropper) -> Prediction:
    try:
        cropped = cropper(open_picture(path))
    except BadFile as error:
        return Prediction(str(path), reason=str(error))
    if cropped.upscaled:
        return Prediction(str(path), reason="the face is too small: enlarging it would blur what tells attacks apart")
    images = torch.from_numpy(np.ascontiguousarray(cropped.image)).permute(2, 0, 1)[None]
    logits = []
    for _, one in sorted(members_of(finished).items()):
        scorer.load(one)
        logits.append(scorer.score_images(images).double().numpy())
    logit = float(mean_score(logits)[0]) if len(logits) > 1 else float(logits[0][0])
    decision = "live" if logit >= threshold.value else "attack"
    return Prediction(str(path), float(1 / (1 + np.exp(-logit))), logit, decision)


def images_at(path: Path) -> Iterator[Path]:
    """Return a picture, or the pictures in a folder in order of their names."""
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise UserError(str(path), "is neither an image nor a folder")
    found = sorted(one for one in path.rglob("*") if one.suffix.lower() in ENDINGS)
    if not found:
        raise UserError(str(path), f"has no images ({', '.join(ENDINGS)})")
    yield from found


def _operating_point(threshold: Threshold) -> str:
    rates = ""
    if threshold.far is not None and threshold.frr is not None:
        rates = (
            f"; at the sites it accepts {threshold.far:.2%} of held-out attacks and rejects {threshold.frr:.2%} of live"
        )
    return f"threshold: logit {threshold.value:.3f}, chosen by {threshold.rule}{rates}"
