"""The generic benchmark: a finished model judged on an identity set, as a whole and by group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.data.batches import View
from fedvisage.errors import RunFailed
from fedvisage.federation.members import members_of
from fedvisage.federation.wire.message import Message
from fedvisage.metrics import generic
from fedvisage.metrics.decision import tar_by_impostors, within_counts
from fedvisage.metrics.listed_pairs import OnPairs, on_listed_pairs, pairs_among
from fedvisage.metrics.similarity import Faces, labelled
from fedvisage.metrics.threshold import Histogram, Threshold
from fedvisage.recipe import Recipe, Recognition
from fedvisage.tasks.recognition.heldout import has_directions
from fedvisage.tasks.recognition.rates import mean_of, named, rates_of
from fedvisage.tasks.scoring import Scorer

LEAST_GROUP = 2
"""A group's own figures need so many people."""


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
        figures[kind] = {rate: mean_of([one.figures[kind][rate] for one in judged]) for rate in judged[0].figures[kind]}
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
    figures: dict[str, Any] = {
        **rates_of(verified.tar if verified else {}, identified),
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
    if by_group and len(np.unique(view.groups)) > 1:
        inside = [counts[group] for group in by_group]
        kinds = tar_by_impostors(counts[""], inside, sorted(verified.tar if verified else ()))
        figures["tar_by_impostors"] = {kind: named(rates) for kind, rates in kinds.items()}
    if listed is not None:
        figures["listed_pairs"] = listed_figures(str(settings.pairs), listed)
    return JudgedGeneric(figures, pairs, view.items.tolist(), counts, listed)


def listed_figures(path: str, listed: OnPairs) -> dict[str, Any]:
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
