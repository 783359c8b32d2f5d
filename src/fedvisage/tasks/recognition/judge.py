"""Judging a finished recognition model: thresholds and personal figures from the sites, the generic benchmark here."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedvisage.data.batches import View
from fedvisage.errors import RunFailed
from fedvisage.federation.declared import Declared
from fedvisage.federation.members import members_of
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.files import write_atomically, write_tensors
from fedvisage.metrics import generic
from fedvisage.metrics.decision import threshold_at_fmr, within_counts
from fedvisage.metrics.listed_pairs import OnPairs, on_listed_pairs, pairs_among
from fedvisage.metrics.personalised import OfSite, figures_of_site
from fedvisage.metrics.similarity import Faces, labelled
from fedvisage.metrics.threshold import Histogram, Threshold, auc_from_histogram, eer_from_histogram
from fedvisage.recipe import Recipe, Recognition
from fedvisage.tasks.asking import ask_about
from fedvisage.tasks.opened import Opened, People
from fedvisage.tasks.recognition.heldout import PERSONAL, UNMEASURED, faces_of, has_directions, models_of, rates
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Trained

SIMILARITIES, PAIRS = "similarities.safetensors", "pairs.csv"
LEAST_GROUP = 2
"""A group's own figures need so many people."""


def heldout_table(histograms: Mapping[str, Histogram]) -> dict[str, Any]:
    """Return what the histograms say of each site's pairs."""
    return {
        name: {"auc": auc_from_histogram(counts), "eer": eer_from_histogram(counts)}
        for name, counts in sorted(histograms.items())
    }


def choose_thresholds(method: Declared, recipe: Recipe, histograms: Mapping[str, Histogram]) -> dict[str, Threshold]:
    """Choose the threshold of a yes or no at the recipe's false match rate; none where there are too few pairs."""
    fmr = recipe.evaluation.people.fmr
    groups = {name: [counts] for name, counts in sorted(histograms.items())}
    if method.members != "each":
        groups = {"": [counts for _, counts in sorted(histograms.items())]}
    chosen = {name: threshold_at_fmr(counts, fmr) for name, counts in groups.items()}
    return {name: threshold for name, threshold in chosen.items() if threshold is not None}


def collect_personal(server: Server, finished: Message) -> dict[str, dict[str, OfSite]]:
    """Ask the sites how well their own models know their own people: figures by model and site."""
    fars, fpirs = rates(server.recipe)
    figures: dict[str, dict[str, OfSite]] = {name: {} for name in models_of(server.method)}
    for site, reply in sorted(ask_about(server, PERSONAL, finished).items()):
        counts = tuple(int(value) for value in reply["pairs"])
        for model, row in zip(figures, reply["figures"].tolist(), strict=True):
            values = [None if value == UNMEASURED else float(value) for value in row]
            tar, tpir = dict(zip(fars, values, strict=False)), dict(zip(fpirs, values[len(fars) :], strict=True))
            figures[model][site] = OfSite(tar, tpir, counts)  # type: ignore[arg-type]
    return figures


def personal_of_merged(scorer: Scorer, finished: Message, people: People) -> dict[str, dict[str, OfSite]]:
    """Judge a model that was trained on merged data on each site's people, apart again: a simulation anyway."""
    own = {name: faces_of(scorer, finished, site.train, site.heldout, others)
           for name, site in people.apart.items() if (others := people.strangers[name]) is not None}  # fmt: skip
    counting = scorer.recipe.evaluation.people.counting
    return {"generic": {name: figures_of_site(*faces, *rates(scorer.recipe), counting) for name, faces in own.items()}}


def personal_figures(recipe: Recipe, found: Mapping[str, Mapping[str, OfSite]]) -> dict[str, Any] | None:
    """Return what metrics.json says of the sites' own models; the last model is the headline."""
    if not found or not any(found.values()):
        return None
    models = {model: _mean_of_sites(sites) for model, sites in found.items()}
    chosen = list(found)[-1]
    names = ("genuine_pairs", "impostor_pairs", "probes_of_own_people", "probes_of_strangers")
    sites = {
        name: {**_rates(one.tar, one.tpir), **dict(zip(names, one.counts, strict=True))}
        for name, one in found[chosen].items()
    }
    return {
        **models[chosen],
        "model": chosen,
        "impostors": recipe.evaluation.people.impostors,
        "models": models,
        "sites": sites,
    }


def _mean_of_sites(sites: Mapping[str, OfSite]) -> dict[str, Any]:
    """Average over the sites that can show a rate; how many those are stands beside the means."""
    tables = [_rates(one.tar, one.tpir) for one in sites.values()]
    mean: dict[str, Any] = {
        kind: {rate: _mean([table[kind][rate] for table in tables]) for rate in tables[0][kind]}
        for kind in ("tar_at_far", "tpir_at_fpir")
    }
    measured = [sum(table["tar_at_far"][rate] is not None for table in tables) for rate in tables[0]["tar_at_far"]]
    return {**mean, "sites_measured": dict(zip(tables[0]["tar_at_far"], measured, strict=True))}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _rates(tar: Mapping[float, float | None], tpir: Mapping[float, float | None]) -> dict[str, dict[str, float | None]]:
    return {"tar_at_far": named(tar), "tpir_at_fpir": named(tpir)}


def named(values: Mapping[float, float | None]) -> dict[str, float | None]:
    """Name rates as metrics.json does: 1e-3."""
    return {np.format_float_scientific(rate, trim="-", exp_digits=1): value for rate, value in values.items()}


@dataclass(frozen=True, eq=False)
class JudgedGeneric:
    """The generic benchmark's figures, its fixed pairs with their images' names, and counts of all pairs by group."""

    figures: dict[str, Any]
    pairs: generic.FixedPairs
    items: list[str]
    counts: dict[str, Histogram]
    listed: OnPairs | None = None


def judge_generic(scorer: Scorer, finished: Message, view: View, thresholds: Mapping[str, Threshold]) -> JudgedGeneric:
    """Judge the generic model on the user's identity set; of several members, the first one's pairs are kept."""
    judged = []
    for name, member in sorted(members_of(finished).items()):
        scorer.load(member)
        identity = np.unique(view.subjects, return_inverse=True)[1]
        features = scorer.embeddings(view)
        if not has_directions(features):
            raise RunFailed("the model's features are zero or not finite: training diverged; lower the learning rate")
        faces = labelled(features.numpy(), identity)
        judged.append(_judge_faces(faces, view, thresholds.get(name), scorer.recipe))
    if len(judged) == 1:
        return judged[0]
    figures = {
        **judged[0].figures,
        "members": {name: one.figures for name, one in zip(sorted(members_of(finished)), judged, strict=True)},
    }
    for kind in ("tar_at_far", "tpir_at_fpir"):
        figures[kind] = {rate: _mean([one.figures[kind][rate] for one in judged]) for rate in judged[0].figures[kind]}
    return JudgedGeneric(figures, judged[0].pairs, judged[0].items, judged[0].counts)


def _judge_faces(faces: Faces, view: View, threshold: Threshold | None, recipe: Recipe) -> JudgedGeneric:
    settings = recipe.evaluation.people
    probe = np.concatenate([part.set.rows.split[part.indices] for part in view.slices]) == "test"
    verified = generic.verification(faces, settings.far)
    identified = generic.identification(faces, probe, settings.fpir, settings.counting)
    pairs = generic.on_fixed_pairs(faces, settings.folds_of)
    listed = on_listed_pairs(faces, pairs_among(view, settings.pairs)) if settings.pairs else None
    counts, by_group = {"": within_counts(faces)}, {}
    for group in np.unique(view.groups).tolist():
        some = faces.take(view.groups == group)
        if len(np.unique(some.identity)) >= LEAST_GROUP:
            counts[group] = within_counts(some)
            own = generic.verification(some, ())
            by_group[group] = {
                "tar_at_far": named(own.tar) if own else {},
                "accuracy_on_ten_folds": _accuracy(some, settings),
                "identities": len(np.unique(some.identity)),
                "images": len(some),
                **_decided(counts[group], threshold),
            }
    figures = {
        **_rates(verified.tar if verified else {}, identified),
        "accuracy_on_ten_folds": pairs.folds.mean if pairs.folds else None,
        "accuracy_std": pairs.folds.std if pairs.folds else None,
        "identities": len(np.unique(faces.identity)),
        "images": len(faces),
        "genuine_pairs": int(counts[""][1].sum()),
        "impostor_pairs": int(counts[""][0].sum()),
        "identities_without_pairs": int((np.unique(faces.identity, return_counts=True)[1] == 1).sum()),
        "identities_not_searched": len(np.setdiff1d(faces.identity, generic.searched(faces, probe))),
        "decision": _decided(counts[""], threshold),
        "groups": by_group,
    }
    if listed is not None:
        figures["listed_pairs"] = _listed_figures(str(settings.pairs), listed)
    return JudgedGeneric(figures, pairs, view.items.tolist(), counts, listed)


def _listed_figures(path: str, listed: OnPairs) -> dict[str, Any]:
    """Return what metrics.json says of a list of pairs: its name, what there was of it, and the figures."""
    return {
        "list": Path(path).name,
        "pairs": len(listed.pairs),
        "left_out": listed.pairs.left_out,
        "folds": len(listed.folds.accuracy) if listed.folds else 0,
        "accuracy": listed.folds.mean if listed.folds else None,
        "accuracy_std": listed.folds.std if listed.folds else None,
        "tar_at_far": named(listed.tar),
    }


def _accuracy(faces: Faces, settings: Recognition) -> float | None:
    """Return the accuracy on ten folds of fixed pairs, as RFW reports it for each group."""
    folds = generic.on_fixed_pairs(faces, settings.folds_of).folds
    return folds.mean if folds else None


def _decided(counts: Histogram, threshold: Threshold | None) -> dict[str, float | None]:
    """Return the error rates of a yes or no at the sites' threshold, which is an edge of the bins."""
    if threshold is None:
        return {"fmr": None, "fnmr": None}
    edge = round((threshold.value + 1) * counts.shape[1] / 2)
    impostor, genuine = (row.sum() for row in counts)
    return {
        "fmr": float(counts[0][edge:].sum() / impostor) if impostor else None,
        "fnmr": float(counts[1][:edge].sum() / genuine) if genuine else None,
    }


def judge_run(scorer: Scorer, trained: Trained, data: Opened, out: Path) -> dict[str, Any]:
    """Judge a run's generic model on its benchmark, and put the sites' figures beside it."""
    recipe, saved, personal = scorer.recipe, trained.saved, trained.personal
    if scorer.method.pooled and data.people is not None:
        personal = personal_of_merged(scorer, saved.finished, data.people)
    figures = judge(out, scorer, saved.finished, data.user, saved.thresholds)
    return {
        **threshold_figures(recipe, saved.thresholds),
        **figures,
        "personalised": personal_figures(recipe, personal),
        "steps_per_epoch": _steps_per_epoch(out, recipe),
        "sites_heldout": trained.heldout,
        "counted": data.people.counted if data.people else {},
    }


def _steps_per_epoch(out: Path, recipe: Recipe) -> float | None:
    """Return the mean number of training steps of an epoch at a site, where the method counts them."""
    counts = [count for row in read_lines(out / ROUNDS) for count in (row.get("steps") or {}).values()]
    return float(np.mean(counts)) / recipe.training.local.epochs if counts and recipe.training.local.epochs else None


def judge(
    out: Path | None, scorer: Scorer, finished: Message, user: View | None, thresholds: Mapping[str, Threshold]
) -> dict[str, Any]:
    """Judge the generic model on the user's set, and write the files that its figures can be worked out from."""
    if user is None:
        return {}
    judged = judge_generic(scorer, finished, user, thresholds)
    if out is None:
        return {"generic": judged.figures}
    write_atomically(out / "scores.csv", _pairs_as_csv(judged).encode())
    if judged.listed is not None:
        write_atomically(out / PAIRS, _listed_as_csv(judged.items, judged.listed).encode())
    write_tensors(out / SIMILARITIES, {name or "all": torch.from_numpy(c) for name, c in judged.counts.items()})
    return {"generic": judged.figures}


def _pairs_as_csv(judged: JudgedGeneric) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("first", "second", "same", "similarity"))
    rows = zip(judged.pairs.pairs.tolist(), judged.pairs.same.tolist(), judged.pairs.similarity.tolist(), strict=True)
    table.writerows((judged.items[a], judged.items[b], int(same), f"{value:.9g}") for (a, b), same, value in rows)
    return text.getvalue()


def _listed_as_csv(items: list[str], listed: OnPairs) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("first", "second", "same", "fold", "similarity"))
    pairs = listed.pairs
    rows = zip(pairs.first, pairs.second, pairs.same, pairs.fold, listed.similarity, strict=True)
    for a, b, same, fold, value in rows:
        table.writerow((items[a], items[b], int(same), int(fold) + 1, f"{value:.9g}"))
    return text.getvalue()


def threshold_figures(recipe: Recipe, thresholds: Mapping[str, Threshold]) -> dict[str, Any]:
    """Return what metrics.json says of the threshold of a yes or no."""
    threshold = thresholds.get("") or next(iter(thresholds.values()), None)
    if threshold is None:
        return {
            "threshold_rule": f"source-fmr {recipe.evaluation.people.fmr:g}",
            "threshold": None,
            "threshold_source": None,
        }
    return {
        "threshold_rule": threshold.rule,
        "threshold": threshold.value,
        "threshold_source": {"fmr": threshold.far, "fnmr": threshold.frr},
    }
