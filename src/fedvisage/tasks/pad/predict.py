"""Scoring new pictures with a finished model and its stored threshold, or saying why a picture is rejected.

The steps are functions of arrays: ``look_for`` gives the one that finds the face of a picture and cuts it out,
``score_with`` the one that scores such crops, many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedvisage.errors import UserError
from fedvisage.faces.upright import Image
from fedvisage.federation.members import members_of
from fedvisage.federation.method import Message
from fedvisage.metrics.threshold import Threshold
from fedvisage.progress import Steps, unwatched
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.pad.looking import Look, Score, Seen, look_for, predictions
from fedvisage.tasks.pad.prediction import Predictions
from fedvisage.tasks.pictures import Asked
from fedvisage.tasks.scoring import Logits, Scorer, as_logits, mean_score

__all__ = ["Look", "Score", "Seen", "look_for", "predict", "score_with"]


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
    return predictions(asked, look, score_with(model.scorer, finished), threshold, steps)


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
