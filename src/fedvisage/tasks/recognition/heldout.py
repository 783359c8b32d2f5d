"""Calls of recognition that every site answers about a finished model, without sending a feature.

`heldout` returns similarities of genuine and impostor pairs, counted in fixed bins, from which the decision threshold
is chosen. `personal` returns metrics of the site's own models on the site's own people (FedFR, "Evaluation Metrics").
With `training.keep`, `unseen` returns such counts of the held-out people of a site, for start and result.

Impostors are the site's strangers: held-out public identities, or in a simulation the people of the other sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvisage.data.batches import View
from fedvisage.federation.method import GENERIC, Call, Method, Personal
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.wire.message import Digests, Message
from fedvisage.federation.wire.schema import Upload
from fedvisage.metrics.generic import pair_counts, within_counts
from fedvisage.metrics.identification import PERSONAL_FARS, PERSONAL_FPIRS, SiteFigures, figures_of_site
from fedvisage.metrics.similarity import Faces, Features, label_features
from fedvisage.metrics.threshold import BINS
from fedvisage.recipe import Recipe
from fedvisage.tasks.asking import call_with_model
from fedvisage.tasks.opened import RecognitionData
from fedvisage.tasks.pad.heldout import SCORES, evaluations, keeps_curves
from fedvisage.tasks.scoring import Scorer

Transform = Callable[[Tensor], Tensor]
PERSONAL, UNSEEN = "personal", "unseen"
UNMEASURED = -1.0
"""The value of a rate for which a site has too few pairs, because the wire format only allows finite numbers."""
PAIRS = Upload(
    "histogram", "statistic", shape=(2, BINS), dtype="int64", guarantee="counts of similarities of pairs in fixed bins"
)
PEOPLE = Upload(
    "people",
    "statistic",
    shape=(2,),
    dtype="int64",
    guarantee="numbers of people with several images, and of pairs of different people",
)


def uploads(method: Method) -> dict[str, tuple[Upload, ...]]:
    """Return the uploads of the calls; for a method that merges the sites' data, no site has its own model."""
    if method.pooled:
        return {SCORES: (PAIRS,)}

    def shape(recipe: Recipe) -> tuple[int, ...]:
        fars, fpirs = rates(recipe)
        return len(models_of(method)), len(fars) + len(fpirs)

    guarantee = "TAR and TPIR of the site's own people"
    figures = Upload("figures", "statistic", shape=shape, dtype="float64", guarantee=guarantee)
    guarantee = "numbers of pairs and probes behind the figures"
    return {
        SCORES: (PAIRS,) if method.members == "each" else (PAIRS, PEOPLE),
        PERSONAL: (figures, Upload("pairs", "statistic", shape=(4,), dtype="int64", guarantee=guarantee)),
    }


def models_of(method: Method) -> Mapping[str, Personal]:
    """Return the models with which a method's sites can recognise their people; the last is the method's choice."""
    return method.prediction.personal or {"generic": GENERIC}


def rates(recipe: Recipe) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the FARs and FPIRs of the personal metrics."""
    settings = recipe.evaluation.people
    return settings.personal_far or PERSONAL_FARS, settings.personal_fpir or PERSONAL_FPIRS


def calls(scorer: Scorer) -> dict[str, Call]:
    """Return the calls; the sites of a process share the scorer and the generic features of strangers."""
    declared = uploads(scorer.method)
    cached, digests = dict[tuple[str, int], Features](), Digests()

    def generic(finished: Message, view: View) -> Features:
        """Return the generic model's features of a view that several sites share, computed once."""
        key = digests.of(finished), id(view)
        if key not in cached:
            cached.clear()  # bounds the memory: only the latest model and view stay
            cached[key] = _features(scorer, finished, view, None)
        return cached[key]

    def pairs(site: Site, finished: Message) -> Message:
        identity = np.unique(site.data.subjects, return_inverse=True)[1]
        own_faces = label_features(_features(scorer, finished, site.data, None), identity)
        if site.strangers is None:
            return {"histogram": torch.from_numpy(within_counts(own_faces)), **people(site)}
        # All strangers share one label: only their pairs with the site's people count.
        strangers = label_features(generic(finished, site.strangers), np.full(len(site.strangers), -1))
        return {"histogram": torch.from_numpy(pair_counts(own_faces, strangers)), **people(site)}

    def unseen(site: Site, finished: Message) -> Message:
        if site.unseen is None or not len(site.unseen):
            return {"histogram": torch.zeros((2, BINS), dtype=torch.int64)}
        identity = np.unique(site.unseen.subjects, return_inverse=True)[1]
        faces = label_features(_features(scorer, finished, site.unseen, None), identity)
        return {"histogram": torch.from_numpy(within_counts(faces))}

    def people(site: Site) -> Message:
        """Return the numbers of people and of pairs of people behind the counts, if the model keeps curves."""
        if not keeps_curves(scorer.recipe, scorer.method):
            return {}
        images = np.unique(site.data.subjects, return_counts=True)[1]
        others = len(images) - 1 if site.strangers is None else 2 * len(site.strangers.identities)
        return {PEOPLE.name: torch.tensor([int((images > 1).sum()), len(images) * others // 2])}

    def figures(site: Site, finished: Message) -> Message:
        settings = scorer.recipe.evaluation.people
        assert site.test is not None
        assert site.strangers is not None, "a personal model is evaluated with strangers"
        rows, counts = [], (0, 0, 0, 0)
        for personal in models_of(scorer.method).values():
            weights = personal.weights(site, finished)
            transform = personal.transform(site) if personal.transform else None
            faces = faces_of(scorer, weights, site.data, site.test, site.strangers, transform)
            measured = figures_of_site(
                *faces, *rates(scorer.recipe), settings.counting, unit_length=settings.gallery != "raw"
            )
            rows.append(
                [UNMEASURED if value is None else value for value in (*measured.tar.values(), *measured.tpir.values())]
            )
            counts = measured.counts
        return {"figures": torch.tensor(rows, dtype=torch.float64), "pairs": torch.tensor(counts)}

    runs = {SCORES: pairs, PERSONAL: figures}
    questions = evaluations(scorer.recipe) + 2
    if not keeps_curves(scorer.recipe, scorer.method):
        declared[SCORES] = (PAIRS,)
    answered = {
        call: Call(runs[call], fields, exact=True, private=call == PERSONAL, questions=questions)
        for call, fields in declared.items()
    }
    return answered if scorer.recipe.training.keep is None else {**answered, UNSEEN: Call(unseen, (PAIRS,), exact=True)}


def faces_of(
    scorer: Scorer, weights: Message, training: View, test: View, strangers: View, transform: Transform | None = None
) -> tuple[Faces, Faces, Faces]:
    """Return one model's features of a site's training images, its test images and its strangers, labelled."""
    people = len(training.identities)
    own_faces = [
        label_features(_features(scorer, weights, view, transform), np.searchsorted(training.identities, view.subjects))
        for view in (training, test)
    ]
    stranger_labels = people + np.unique(strangers.subjects, return_inverse=True)[1]
    return own_faces[0], own_faces[1], label_features(_features(scorer, weights, strangers, transform), stranger_labels)


def _features(scorer: Scorer, weights: Message, view: View, transform: Transform | None) -> Features:
    if not len(view):
        return np.empty((0, 1), np.float32)
    scorer.load(weights)
    values = scorer.embeddings(view)
    if transform is not None:
        with torch.inference_mode():
            values = transform(values.to(scorer.compute.device)).float().cpu()
    if not has_directions(values):
        raise TrainingFailed("the model's features are zero or not finite; a lower learning rate or clip_norm may help")
    return np.asarray(values.numpy(), np.float32)


def has_directions(features: Tensor) -> bool:
    """Return whether all features have a finite non-zero length; features of a diverged training do not."""
    length = torch.linalg.vector_norm(features, dim=1)
    return bool((torch.isfinite(length) & (length > 0)).all())


def mean_of(values: list[float | None]) -> float | None:
    """Return the mean of the measured values; None if there are none."""
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if measured else None


def rates_of(
    tar: Mapping[float, float | None], tpir: Mapping[float, float | None] | None = None
) -> dict[str, float | None]:
    """Return rates under their names in metrics.json: ``tar@1e-3``, ``tpir@1e-2``."""
    return {
        f"{kind}@{np.format_float_scientific(rate, trim='-', exp_digits=1)}": value
        for kind, values in (("tar", tar), ("tpir", tpir or {}))
        for rate, value in values.items()
    }


# Personal metrics: the sites' own models on the sites' own people.


def collect_personal(server: Server, finished: Message) -> dict[str, dict[str, SiteFigures]]:
    """Request metrics of the sites' own models on their own people, by model and site."""
    fars, fpirs = rates(server.recipe)
    figures: dict[str, dict[str, SiteFigures]] = {name: {} for name in models_of(server.method)}
    for site, reply in sorted(call_with_model(server, PERSONAL, finished).items()):
        counts = tuple(int(value) for value in reply["pairs"])
        for model, row in zip(figures, reply["figures"].tolist(), strict=True):
            values = [None if value == UNMEASURED else float(value) for value in row]
            tar, tpir = dict(zip(fars, values, strict=False)), dict(zip(fpirs, values[len(fars) :], strict=True))
            figures[model][site] = SiteFigures(tar, tpir, counts)  # type: ignore[arg-type]
    return figures


def personal_of_merged(scorer: Scorer, finished: Message, people: RecognitionData) -> dict[str, dict[str, SiteFigures]]:
    """Evaluate a model of merged data on each site's people separately; merged data implies a simulation."""
    faces_by_site = {
        name: faces_of(scorer, finished, site.train, site.heldout, strangers)
        for name, site in people.apart.items()
        if (strangers := people.strangers[name]) is not None
    }
    settings, far_and_fpir = scorer.recipe.evaluation.people, rates(scorer.recipe)
    unit_length = settings.gallery != "raw"
    return {
        "generic": {
            name: figures_of_site(*faces, *far_and_fpir, settings.counting, unit_length=unit_length)
            for name, faces in faces_by_site.items()
        }
    }


def personal_figures(recipe: Recipe, rates_by_model: Mapping[str, Mapping[str, SiteFigures]]) -> dict[str, Any]:
    """Return the metrics of the sites' own models; the last model is the headline."""
    if not any(rates_by_model.values()):
        return {}
    models = {model: _mean_of_sites(sites) for model, sites in rates_by_model.items()}
    headline = list(rates_by_model)[-1]
    names = ("genuine_pairs", "impostor_pairs", "probes_of_own_people", "probes_of_strangers")
    sites = {
        name: {**rates_of(site_rates.tar, site_rates.tpir), **dict(zip(names, site_rates.counts, strict=True))}
        for name, site_rates in rates_by_model[headline].items()
    }
    return {
        **models[headline],
        "model": headline,
        "impostors": recipe.evaluation.people.impostors,
        "models": models,
        "sites": sites,
    }


def _mean_of_sites(sites: Mapping[str, SiteFigures]) -> dict[str, Any]:
    """Average each rate over the sites that can measure it, and return the number of these sites with the means."""
    tables = [rates_of(site_rates.tar, site_rates.tpir) for site_rates in sites.values()]
    mean = {rate: mean_of([table[rate] for table in tables]) for rate in tables[0]}
    measured = {rate: sum(table[rate] is not None for table in tables) for rate in mean if rate.startswith("tar@")}
    return {**mean, "sites_measured": measured}
