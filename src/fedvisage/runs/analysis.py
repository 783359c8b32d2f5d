"""Analyze photographs with a published or exported detector, without torch: faces, decisions, scores and quality."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.arguments import check_arguments, wrong_argument
from fedvisage.base.errors import BadFile, UserError
from fedvisage.device.exported import Exported
from fedvisage.device.fused import Fused
from fedvisage.device.pipeline import Box, Pipeline
from fedvisage.faces.pictures import open_picture
from fedvisage.faces.quality import Quality, Settings
from fedvisage.starts.published import locate_detector


@dataclass(frozen=True)
class AnalyzedFace:
    """A face of a photograph.

    Attributes:
        box: its position in pixels, and the confidence of the face detector.
        decision: `bona_fide`, `attack`, or `no_decision` if its quality does not allow one.
        score: the probability of a living face; None without a decision.
        threshold: the score from which a face is bona fide.
        quality: its size, sharpness and pose; `reasons` lists what speaks against a decision.
    """

    box: Box
    decision: str
    score: float | None
    threshold: float
    quality: Quality


@check_arguments(
    picture="the path of a picture, or an array H×W×3 of uint8 in RGB",
    pad="the name of a published detector, such as 'minifasnet', an export, or its directory",
)
def analyze(
    picture: str | Path | NDArray[np.uint8], pad: str | Path | Exported | Fused = "minifasnet"
) -> list[AnalyzedFace]:
    """Return the faces of a photograph, the largest first, each with its decision, score and quality.

    ``pad`` is a published detector that `fedvisage model get` has stored, the directory of an export, or an open
    export. For many pictures, open it once: ``fv.analyze(path, pad=fv.open("minifasnet"))``.
    """
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise wrong_argument("picture", "the path of a picture, or an array H×W×3 of uint8 in RGB", picture)
        image = picture
    else:
        try:
            image = open_picture(Path(picture))
        except BadFile as bad:
            raise UserError(str(picture), str(bad)) from None
    model = pad if isinstance(pad, Exported | Fused) else locate_detector(pad)
    faces = []
    for face in Pipeline(model, settings=Settings(several=True)).check(image).faces:
        assert face.pad is not None, "the pipeline has a detector of attacks"
        faces.append(AnalyzedFace(face.box, face.pad.decision, face.pad.score, face.pad.threshold, face.quality))
    return faces
