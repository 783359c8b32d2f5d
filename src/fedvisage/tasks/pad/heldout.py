"""Calls of attack detection that every site answers about a finished model: histograms and scatter of held-out images.

Scores never leave a site. Their counts in fixed bins do, as a declared statistic, and the server chooses thresholds
from them. After training, each site also sends its scatter: the distance between BatchNorm statistics of its batches.
Adaptation to a target treats distances of that size as chance. With the rule `source-train-eer` the images are the
site's training images, which the ledger states; with `evaluation.published` these are counted in addition.

For the error-rate curves that a model keeps (`federation.rates: curve`), each site also sends the
counts by attack type, and how many people and presentations they come from. If the method gives sites models of their
own, `personal` returns the counts of the same images by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedvisage.data.batches import View
from fedvisage.federation.method import GENERIC, Call, Method, Personal
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.wire.message import Digests, Message
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, Upload
from fedvisage.metrics.operating_point import CLASSES, LEAST_SITES, count_by_type
from fedvisage.metrics.threshold import BINS, ON_TRAINING, histogram
from fedvisage.recipe import Recipe
from fedvisage.tasks.scoring import Logits, Scorer

SCORES, SCATTER, TRAINING, PERSONAL = "heldout", "scatter", "training", "personal"
BY_TYPE = Upload(
    "by_type",
    "statistic",
    shape=(len(CLASSES), BINS),
    dtype="int64",
    guarantee="counts of held-out scores by attack type in fixed bins",
)
PEOPLE = Upload(
    "people",
    "statistic",
    shape=(len(CLASSES), 2),
    dtype="int64",
    guarantee="numbers of held-out people and presentations by attack type",
)
UPLOADS = {
    SCORES: Upload(
        "histogram", "statistic", shape=(2, BINS), dtype="int64", guarantee="counts of held-out scores in fixed bins"
    ),
    SCATTER: Upload("scatter", "statistic", dtype="float64", guarantee="mean distance between held-out batches"),
}
FOR_CURVES = (BY_TYPE, PEOPLE)
OF_TRAINING = {
    SCORES: replace(UPLOADS[SCORES], guarantee="counts of training scores in fixed bins"),
    SCATTER: replace(UPLOADS[SCATTER], guarantee="mean distance between training batches"),
}
"""The same uploads for recipes that evaluate sites on their training images."""


def own_models(method: Method) -> Mapping[str, Personal]:
    """Return the models of its own that a site evaluates, without the generic one."""
    return {name: model for name, model in method.prediction.personal.items() if model is not GENERIC}


def personal_upload(method: Method) -> Upload:
    """Return the upload of the counts of own models, one histogram per model."""
    guarantee = "counts of held-out scores of the site's own models in fixed bins"
    shape = (len(own_models(method)), 2, BINS)
    return Upload("own_histograms", "statistic", shape=shape, dtype="int64", guarantee=guarantee)


def calls(scorer: Scorer) -> dict[str, Call]:
    """Return the calls; the sites of a process share the scorer.

    In the last round the server requests the scatter after the scores, so both are computed in one pass over the
    images.
    """
    scatters, digests = dict[str, tuple[str, float]](), Digests()
    latest = dict[str, tuple[str, Logits]]()

    def scores(site: Site, finished: Message) -> Message:
        draws = scorer.method.prediction.draw_spread is not None
        if site.round == site.recipe.training.rounds and not draws and len(site.data):
            logits, distance = scorer.scores_and_scatter(finished, site.data)
            scatters[site.name] = digests.of(finished), distance
        else:
            (logits,) = scorer.scores(finished, site.data).values()
        latest[site.name] = digests.of(finished), logits
        return _count_scores(site.data, logits)

    def scatter(site: Site, finished: Message) -> Message:
        digest, distance = scatters.get(site.name, ("", 0.0))
        if digest != digests.of(finished):
            distance = scorer.scatter(finished, site.data)
        # Larger figures would be refused, although the model may be usable without adaptation.
        reply: Message = {"scatter": torch.tensor(min(LARGEST_MAGNITUDE, distance), dtype=torch.float64)}
        if not keeps_curves(scorer.recipe, scorer.method):
            return reply
        digest, logits = latest.get(site.name, ("", np.empty(0)))
        if digest != digests.of(finished):
            (logits,) = scorer.scores(finished, site.data).values()
        return {**reply, **_count_by_type(site, logits)}

    def of_training(site: Site, finished: Message) -> Message:
        (logits,) = scorer.scores(finished, site.data).values()
        return _count_scores(site.data, logits)

    def personal(site: Site, finished: Message) -> Message:
        assert site.test is not None
        counts = []
        for model in own_models(scorer.method).values():
            (logits,) = scorer.scores(model.weights(site, finished), site.test).values()
            counts.append(_count_scores(site.test, logits)["histogram"])
        return {"own_histograms": torch.stack(counts)}

    recipe = scorer.recipe
    compared = 0 if recipe.training.keep is None else 2  # the start, and an average
    for_curves = FOR_CURVES if keeps_curves(recipe, scorer.method) else ()
    uploads = OF_TRAINING if recipe.evaluation.threshold == ON_TRAINING else UPLOADS
    answered = {
        SCORES: Call(scores, (uploads[SCORES],), exact=True, questions=evaluations(recipe) + 2 + compared),
        SCATTER: Call(scatter, (uploads[SCATTER], *for_curves), exact=True),
    }
    if counts_training(recipe):  # only a call with access to private data sees a site's training images
        answered[TRAINING] = Call(of_training, (OF_TRAINING[SCORES],), exact=True, private=True)
    if own_models(scorer.method):
        answered[PERSONAL] = Call(personal, (personal_upload(scorer.method),), exact=True, private=True)
    return answered


def evaluations(recipe: Recipe) -> int:
    """Return the number of rounds in which sites evaluate the model; the finished model is evaluated in addition."""
    every = recipe.evaluation.every
    return -(-recipe.training.rounds // every) if every else 0


def counts_training(recipe: Recipe) -> bool:
    """Return whether scores of training images are counted in addition to held-out scores."""
    return bool(recipe.evaluation.published) and recipe.evaluation.threshold != ON_TRAINING


def keeps_curves(recipe: Recipe, method: Method) -> bool:
    """Return whether the finished model keeps the sites' averaged curves.

    One of two sites could subtract its own curve, and scores of training images have too few errors.
    """
    one_model = method.members != "each" and not method.pooled
    honest = one_model and len(recipe.data.sites) >= LEAST_SITES and recipe.evaluation.threshold != ON_TRAINING
    return honest and recipe.federation.rates != "threshold"


def _count_by_type(site: Site, logits: Logits) -> Message:
    """Return a site's scores as counts in bins by attack type, with the numbers of people and presentations."""
    if not np.isfinite(logits).all():
        raise TrainingFailed("the model's held-out scores are not finite")
    classes = count_by_type(logits, site.data.species, site.data.subjects, site.data.videos)
    counts = torch.from_numpy(np.stack([classes[name].bins for name in CLASSES]))
    people = torch.tensor([[classes[name].people, classes[name].presentations] for name in CLASSES])
    return {BY_TYPE.name: counts, PEOPLE.name: people}


def _count_scores(view: View, logits: Logits) -> Message:
    """Return the scores of a view as counts in bins."""
    if not np.isfinite(logits).all():
        raise TrainingFailed("the model's held-out scores are not finite")
    return {"histogram": torch.from_numpy(histogram(logits, view.labels.astype("int64")))}
