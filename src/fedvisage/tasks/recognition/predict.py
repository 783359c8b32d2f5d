"""Comparing faces with a finished recognition model: one person or two, at the false match rate of its threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvisage.datasets.importers.identities import Aligned, make_aligner
from fedvisage.datasets.importers.pictures import open_picture
from fedvisage.datasets.importers.report import BadFile
from fedvisage.errors import UserError
from fedvisage.federation.members import members_of
from fedvisage.metrics.similarity import Features, unit
from fedvisage.metrics.threshold import Threshold
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.pad.predict import images_at
from fedvisage.tasks.scoring import Scorer

SAME, OTHER = "same person", "other person"


@dataclass(frozen=True)
class Match:
    """What the model says of a face beside the one in question; without a similarity there is a reason."""

    path: str
    similarity: float | None = None
    decision: str = "rejected"
    reason: str = ""


@dataclass(frozen=True)
class Matches:
    """What the model says of a face beside others, the most similar first, and the threshold by which it decided."""

    threshold: Threshold
    face: str
    matches: list[Match]

    def as_values(self) -> dict[str, Any]:
        """Return all as plain values, for programs."""
        t = self.threshold
        operating = {"rule": t.rule, "similarity": t.value, "fmr": t.far, "fnmr": t.frr}
        return {"threshold": operating, "face": self.face, "matches": [asdict(one) for one in self.matches]}

    def lines(self) -> list[str]:
        """Return all as lines, for people."""
        return [operating_point(self.threshold), *map(_line, self.matches)]


def compare_faces(model: FinishedModel, path: Path, against: Path, *, member: str = "", crop: str = "face") -> Matches:
    """Compare a face with another one, or with each in a folder."""
    if model.task != "recognition":
        raise UserError("--against", "this model detects attacks; leave --against out")
    scorer, saved = model.scorer, model.saved
    threshold, others = _ready(scorer, saved.finished, saved.thresholds, member), list(images_at(against))
    size, threads = model.recipe.input.size, model.recipe.runtime.threads
    aligner = make_aligner(crop, size, threads)  # type: ignore[arg-type]  # it refuses other words itself
    try:
        face = feature_of(scorer, path, aligner)
    except BadFile as bad:
        raise UserError(str(path), str(bad)) from None
    matches = [match(scorer, face, other, aligner, threshold) for other in others]
    matches.sort(key=lambda one: (one.similarity is None, -(one.similarity or 0.0), one.path))
    return Matches(threshold, str(path), matches)


def _line(one: Match) -> str:
    score = "" if one.similarity is None else f"similarity {one.similarity:+.4f}  "
    return f"{one.decision:13}{score}{one.path}{f'  {one.reason}' if one.reason else ''}"


def operating_point(threshold: Threshold) -> str:
    """Say which similarity counts as one person, and what errors that made at the sites."""
    missed = f" and misses {threshold.frr:.2%} of genuine ones" if threshold.frr is not None else ""
    accepted = f"accepts {threshold.far:.4%} of impostor pairs{missed}" if threshold.far is not None else ""
    return f"threshold: similarity {threshold.value:+.4f}, chosen by {threshold.rule}; at the sites it {accepted}"


def feature_of(scorer: Scorer, path: Path, aligner: Callable[[np.ndarray], Aligned]) -> Features:
    """Return the feature of the face on a picture, at unit length."""
    crop, _ = aligner(open_picture(path))
    images = torch.from_numpy(np.ascontiguousarray(crop)).permute(2, 0, 1)[None]
    return unit(scorer.score_images(images).cpu().numpy())


def match(
    scorer: Scorer, face: Features, path: Path, aligner: Callable[[np.ndarray], Aligned], threshold: Threshold
) -> Match:
    """Compare a face with the one on a picture."""
    try:
        similarity = float((face @ feature_of(scorer, path, aligner).T)[0, 0])
    except BadFile as bad:
        return Match(str(path), reason=str(bad))
    return Match(str(path), similarity, SAME if similarity >= threshold.value else OTHER)


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
        raise UserError("threshold", "the sites had too few impostor pairs for one at the recipe's false match rate; "
                        "train with a higher evaluation.recognition.fmr or more held-out people")  # fmt: skip
    scorer.load(members[member])
    return thresholds[member]
