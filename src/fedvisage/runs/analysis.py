"""Analyze photographs with a published or exported detector, without torch: faces, decisions, scores and quality."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.arguments import check_arguments
from fedvisage.base.errors import BadFile, UserError
from fedvisage.device.exported import Exported
from fedvisage.device.fused import Fused
from fedvisage.device.pipeline import Box, Pipeline
from fedvisage.faces.pictures import open_picture
from fedvisage.faces.quality import Quality, Settings
from fedvisage.starts.published import locate_detector


@dataclass(frozen=True)
class AnalyzedFace:
    """A face of a photograph: `bona_fide`, `attack` or `no_decision`, with the reasons in `quality.reasons`.

    The score is the probability of a living face, and None without a decision.
    """

    box: Box
    decision: str
    score: float | None
    threshold: float
    quality: Quality
    notes: tuple[str, ...] = ()
    """Why the decision is less certain, such as little context around the face."""


@check_arguments(
    picture="the path of a picture, or an array H×W×3 of uint8 in RGB",
    pad="the name of a published detector, such as 'minifasnet', an export, or its directory",
)
def analyze(
    picture: str | Path | NDArray[np.uint8], pad: str | Path | Exported | Fused = "minifasnet"
) -> list[AnalyzedFace]:
    """Return the faces of a photograph, the largest first, each with its decision, score and quality.

    For many pictures, open the detector once: ``fv.analyze(path, pad=fv.open("minifasnet"))``.
    """
    try:
        image = picture if isinstance(picture, np.ndarray) else open_picture(Path(picture))
    except BadFile as bad:
        raise UserError(str(picture), str(bad)) from None
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise UserError("picture", f"must be an array H×W×3 of uint8 in RGB, got {image.dtype} {image.shape}")
    model = pad if isinstance(pad, Exported | Fused) else locate_detector(pad)
    faces = Pipeline(model, settings=Settings(several=True)).check(image).faces
    return [
        AnalyzedFace(face.box, face.pad.decision, face.pad.score, face.pad.threshold, face.quality, face.pad.notes)
        for face in faces
        if face.pad is not None
    ]
