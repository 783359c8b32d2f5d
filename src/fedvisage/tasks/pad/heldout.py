"""The core calls that every site answers about its held-out subjects, with a finished model as the message.

Scores never leave a site; their counts in fixed bins do, as a declared statistic, and thresholds are found from them.
Once, after training, one more number does: how far batches of a site lie from each other in the model's BatchNorm
statistics. A user that adapts the model takes that for chance. With the rule `source-train-eer` the images are those
that the site trained on, and the ledger says so; with `evaluation.published` those are counted besides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedvisage.federation.declared import Call
from fedvisage.federation.site import Site, TrainingBroke
from fedvisage.federation.wire.message import Digests, Message
from fedvisage.federation.wire.schema import Upload
from fedvisage.metrics.threshold import BINS, ON_TRAINING, histogram
from fedvisage.recipe import Recipe
from fedvisage.tasks.scoring import Logits, Scorer

SCORES, SCATTER, TRAINING = "heldout", "scatter", "training"
UPLOADS = {
    SCORES: Upload(
        "histogram", "statistic", shape=(2, BINS), dtype="int64", guarantee="counts of held-out scores in fixed bins"
    ),
    SCATTER: Upload("scatter", "statistic", dtype="float64", guarantee="mean distance between held-out batches"),
}
OF_TRAINING = {
    SCORES: replace(UPLOADS[SCORES], guarantee="counts of training scores in fixed bins"),
    SCATTER: replace(UPLOADS[SCATTER], guarantee="mean distance between training batches"),
}
"""The same where the recipe has sites judge on what they train on."""


def calls(scorer: Scorer) -> dict[str, Call]:
    """Return the calls; the scorer is shared by the sites of a process.

    In the last round scatter is asked for next, so it rides along with the scores, in one pass over the images.
    """
    ridden, digests = dict[str, tuple[str, float]](), Digests()

    def scores(site: Site, finished: Message) -> Message:
        if site.round == site.recipe.training.rounds and scorer.method.spread is None and len(site.data):
            logits, distance = scorer.scores_and_scatter(finished, site.data)
            ridden[site.name] = digests.of(finished), distance
        else:
            (logits,) = scorer.scores(finished, site.data).values()
        return _counted(site, logits)

    def scatter(site: Site, finished: Message) -> Message:
        of, distance = ridden.get(site.name, ("", 0.0))
        if of != digests.of(finished):
            distance = scorer.scatter(finished, site.data)
        return {"scatter": torch.tensor(distance, dtype=torch.float64)}

    def of_training(site: Site, finished: Message) -> Message:
        (logits,) = scorer.scores(finished, site.data).values()
        return _counted(site, logits)

    recipe = scorer.recipe
    uploads = OF_TRAINING if recipe.evaluation.threshold == ON_TRAINING else UPLOADS
    return {
        SCORES: Call(scores, (uploads[SCORES],), exact=True, questions=evaluations(recipe) + 2),
        SCATTER: Call(scatter, (uploads[SCATTER],), exact=True),
        # what a site trains on is seen by calls that look at what it keeps to itself
        **({TRAINING: Call(of_training, (OF_TRAINING[SCORES],), exact=True, private=True)}
           if counts_training(recipe) else {}),
    }  # fmt: skip


def evaluations(recipe: Recipe) -> int:
    """Return in how many rounds a recipe has sites judge the model; after the last one it is judged again."""
    every = recipe.evaluation.every
    return -(-recipe.training.rounds // every) if every else 0


def counts_training(recipe: Recipe) -> bool:
    """Tell whether scores of training are counted beside the held-out ones."""
    return bool(recipe.evaluation.published) and recipe.evaluation.threshold != ON_TRAINING


def _counted(site: Site, logits: Logits) -> Message:
    """Return a site's scores as counts in bins."""
    if not np.isfinite(logits).all():
        raise TrainingBroke("the model's held-out scores are not finite")
    return {"histogram": torch.from_numpy(histogram(logits, site.data.labels.astype("int64")))}
