"""`predict` with an exported model: the same pictures, lines and codes as with a run, without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvisage.device.exported import Exported
from fedvisage.errors import UserError
from fedvisage.progress import Steps, unwatched
from fedvisage.tasks.pad.looking import look_for, predictions
from fedvisage.tasks.pad.prediction import Predictions
from fedvisage.tasks.pictures import Asked, Picture
from fedvisage.tasks.recognition import matches as faces

Image = NDArray[np.uint8]


def predict(model: Exported, asked: Asked, *, crop: str = "face", steps: Steps = unwatched) -> Predictions:
    """Score pictures: read and look at them one by one, score their crops in batches."""
    if model.task != "pad":
        raise UserError(
            "--against", "this model recognises people: name a picture, or a folder of them, to compare with"
        )
    if model.threshold is None:
        raise UserError(str(model.directory), "has no threshold to predict with; export a run whose sites chose one")

    def score(crops: Sequence[Image]) -> NDArray[np.float64]:
        return model.run(np.stack(crops)).astype(np.float64)

    return predictions(asked, look_for(crop, model.size), score, model.threshold, steps)


def compare_faces(
    model: Exported, picture: Picture, against: Asked, *, crop: str = "face", steps: Steps = unwatched
) -> faces.Matches:
    """Compare a face with another one, or with each of many."""
    if model.task != "recognition":
        raise UserError("--against", "this model detects attacks; leave --against out")
    if model.threshold is None:
        raise UserError("threshold", faces.TOO_FEW)

    def embed(crops: Sequence[Image]) -> NDArray[np.float32]:
        return model.run(np.stack(crops)).astype(np.float32, copy=False)

    return faces.matches(picture, against, faces.look_for(crop, model.size), embed, model.threshold, steps)
