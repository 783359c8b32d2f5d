"""Evaluation of attack detection: thresholds from the sites' held-out scores, and scores and metrics on the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import json_key, write_tensors
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.overlap import HELD_OUT, SITE
from fedvisage.federation.method import Method
from fedvisage.federation.server import Server, members_of
from fedvisage.federation.wire.message import Message
from fedvisage.metrics import pad
from fedvisage.metrics.groups import Groups, attack_rates, compare_groups
from fedvisage.metrics.intervals import intervals
from fedvisage.metrics.operating_point import BONA_FIDE, CLASSES, ClassCounts, ErrorCurves, average_curves
from fedvisage.metrics.scores import Scores, by_video, concatenate, from_columns
from fedvisage.metrics.threshold import (
    EDGES,
    ON_TRAINING,
    Histogram,
    Threshold,
    auc_from_histogram,
    average_rates,
    eer_from_histogram,
    figures_as_published,
    threshold_from_histograms,
    threshold_from_target,
)
from fedvisage.recipe import Recipe
from fedvisage.tasks.asking import call_with_model
from fedvisage.tasks.opened import POOLED, RunData
from fedvisage.tasks.pad import heldout
from fedvisage.tasks.pad.adaptation import AdaptationOutcome, AdaptationSource, adapt_and_score
from fedvisage.tasks.saved_model import SavedModel
from fedvisage.tasks.scoring import NO_NUMBER, Logits, Scorer
from fedvisage.tasks.seal import FEATURES


def write_features(out: Path, scorer: Scorer, finished: Message, data: RunData) -> None:
    """Write features of a sample of every set for the t-SNE figure; only a simulation can collect them.

    A run with one model per site uses the first site's model.
    """
    recipe = scorer.recipe
    member, weights = next(iter(sorted(members_of(finished).items())))
    scorer.load(weights)
    views = heldout_views(data)
    views |= {recipe.data.target_name: data.target} if data.target is not None else {}
    features, labels, sites = features_of(scorer, views, recipe)
    meta = json_key({"sites": list(views), "model": member})
    write_tensors(out / FEATURES, {"features": features, "label": labels, "site": sites}, meta)


def heldout_views(data: RunData) -> dict[str, View]:
    """Return each site's held-out images; for a method that merges the sites, those of the separate sites."""
    if list(data.sites) != [POOLED]:
        return {name: site.heldout for name, site in data.sites.items() if len(site.heldout)}
    heldout = {}
    for place, views in data.places.items():
        if place.startswith(SITE):
            name = place.removeprefix(SITE).removesuffix(HELD_OUT)
            if name not in heldout or place.endswith(HELD_OUT):
                (heldout[name],) = views
    return heldout


def features_of(scorer: Scorer, views: Mapping[str, View], recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels and the index of the set for a random sample of each view."""
    features, labels, sites = [], [], []
    for number, (name, view) in enumerate(views.items()):
        count = min(recipe.evaluation.features, len(view))
        positions = numpy_rng(recipe.runtime.seed, "features", name).choice(len(view), size=count, replace=False)
        sample = view.subset(np.sort(positions))
        features.append(scorer.features(sample))
        labels.append(torch.from_numpy(sample.labels.astype(np.int64)))
        sites.append(torch.full((count,), number))
    return torch.cat(features), torch.cat(labels), torch.cat(sites)


@dataclass(frozen=True)
class TargetEvaluation:
    """Scores on the target and the metrics computed from them."""

    scores: Scores
    figures: dict[str, Any]


def collect_scatter_and_curves(server: Server, finished: Message) -> tuple[dict[str, float], ErrorCurves | None]:
    """Request the scatter of each site, and average the error rates by attack type if the model keeps them.

    The scatter is the distance between BatchNorm statistics of a site's held-out batches.
    """
    replies = dict(sorted(call_with_model(server, heldout.SCATTER, finished).items()))
    scatter = {name: float(reply["scatter"]) for name, reply in replies.items()}
    if not heldout.keeps_curves(server.recipe, server.method):
        return scatter, None
    classes: dict[str, list[ClassCounts]] = {name: [] for name in CLASSES}
    for site, reply in replies.items():
        counts, people = reply[heldout.BY_TYPE.name].numpy(), reply[heldout.PEOPLE.name].numpy()
        if (counts < 0).any() or (people < 0).any():
            server.exchange.note_failure(site, "refused: sent negative counts")
            continue
        for name, row, (subjects, videos) in zip(CLASSES, counts, people.tolist(), strict=True):
            classes[name].append(ClassCounts(row, subjects, videos))
    return scatter, average_curves(classes.pop(BONA_FIDE), classes, pooled=False)


def choose_thresholds(method: Method, rule: str, histograms: Mapping[str, Histogram]) -> dict[str, Threshold]:
    """Choose a threshold for each member without the target's data; the oracle rule chooses on the target instead."""
    if rule == "target-eer":
        return {}
    if method.members == "each":
        return {name: threshold_from_histograms([counts], rule) for name, counts in sorted(histograms.items())}
    return {"": threshold_from_histograms([counts for _, counts in sorted(histograms.items())], rule)}


def heldout_table(histograms: Mapping[str, Histogram], thresholds: Mapping[str, Threshold]) -> dict[str, Any]:
    """Return AUC, EER and error rates of every site's held-out scores, at the site's threshold."""
    table = {}
    for name, counts in sorted(histograms.items()):
        row: dict[str, Any] = {"auc": auc_from_histogram(counts), "eer": eer_from_histogram(counts)}
        threshold = thresholds.get(name) or thresholds.get("")
        rates = average_rates([counts])
        if threshold is not None and rates.far is not None and rates.frr is not None:
            row["apcer_pooled"] = float(np.interp(threshold.value, EDGES, rates.far))
            row["bpcer"] = float(np.interp(threshold.value, EDGES, rates.frr))
        table[name] = row
    return table


def add_personal(server: Server, finished: Message, table: dict[str, Any]) -> None:
    """Request the counts of the sites' own models, and add their AUC and EER to each site's row of a table."""
    for site, reply in call_with_model(server, heldout.PERSONAL, finished).items():
        counts = zip(heldout.own_models(server.method), reply["own_histograms"].numpy(), strict=True)
        table.setdefault(site, {})["personal"] = {
            model: {"auc": auc_from_histogram(histogram), "eer": eer_from_histogram(histogram)}
            for model, histogram in counts
        }


def personal_figures(method: Method, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean AUC and EER over the sites of the own model that the method chooses, its last."""
    rows = [row["personal"] for _, row in sorted(table.items()) if "personal" in row]
    if not rows:
        return {}
    chosen = [*heldout.own_models(method)][-1]
    values = {name: [row[chosen][name] for row in rows if row[chosen][name] is not None] for name in ("auc", "eer")}
    means = {name: float(np.mean(measured)) if measured else None for name, measured in values.items()}
    return {"personal": {"model": chosen, **means}}


def evaluate_pad(scorer: Scorer, saved: SavedModel, view: View, target: str) -> TargetEvaluation:
    """Score the target's data, after adaptation if the recipe asks for it, and compute all metrics."""
    parts, members = [], {}
    adapt = scorer.recipe.evaluation.adapt
    outcomes: dict[str, AdaptationOutcome] = {}
    if adapt is None:
        by_member = scorer.scores(saved.finished, view)
    else:
        by_member, outcomes = adapt_and_score(scorer, saved.finished, view, adapt, sources_of(scorer.method, saved))
    for name, logits in by_member.items():
        if not np.isfinite(logits).all():
            raise RunFailed(NO_NUMBER)
        scores = as_scores(logits, view, target, name)
        if name in saved.thresholds:
            threshold = saved.thresholds[name]
        elif scorer.recipe.evaluation.threshold == "target-eer":  # only the oracle rule uses the target's labels
            threshold = threshold_from_target(scores)
        else:
            raise RunFailed(f"site {name} sent no histogram of held-out scores, so its model has no threshold")
        members[name] = figures_of(scores, threshold, scorer.recipe)
        if scorer.recipe.evaluation.published:
            evaluation = scorer.recipe.evaluation
            trained = (saved.thresholds if evaluation.threshold == ON_TRAINING else saved.on_training).get(name)
            at_level = scores if evaluation.level == "frame" else by_video(scores)
            members[name]["published"] = figures_as_published(at_level, trained)
        parts.append(scores)
    # One model, or one mean score of all members, is the headline itself; otherwise members' metrics are averaged.
    headline = next(iter(members.values())) if list(members) == [""] else mean_figures(list(members.values()))
    if list(members) != [""]:
        headline["members"] = members
    if (spread := scorer.spread(view)) is not None:
        headline["spread"] = spread
    if outcomes:
        headline["adaptation"] = {name or "model": outcome.as_json() for name, outcome in outcomes.items()}
        headline["adapt"] = scorer.recipe.evaluation.model_dump(mode="json")["adapt"]
    return TargetEvaluation(concatenate(parts), headline)


def sources_of(method: Method, saved: SavedModel) -> dict[str, AdaptationSource]:
    """Return the information for the adaptation of each member.

    Adaptation must not know the threshold of the oracle rule, so that rule gives the logit 0. Of the sites' scatter the
    median counts, so that no single site controls the gate.
    """
    logits = {name: threshold.value for name, threshold in saved.thresholds.items()}
    scatter = float(np.median(list(saved.scatter.values()))) if saved.scatter else 0.0
    if method.members == "each":
        return {
            name: AdaptationSource(logits.get(name, 0.0), saved.scatter.get(name, scatter))
            for name in sorted(members_of(saved.finished))
        }
    return {"": AdaptationSource(logits.get("", 0.0), scatter)}


def as_scores(logits: Logits, view: View, site: str, model: str) -> Scores:
    """Combine logits with the labels and names of their images."""
    return from_columns(
        logits,
        view.labels.astype(np.int64),
        item=view.items.tolist(),
        video=view.videos.tolist(),
        subject=view.subjects.tolist(),
        species=view.species.tolist(),
        site=site,
        model=model,
    )


def figures_of(scores: Scores, threshold: Threshold, recipe: Recipe) -> dict[str, Any]:
    """Return the metrics at the recipe's level and at the other level, with intervals if requested."""
    levels = {"frame": scores, "video": by_video(scores)}
    other_level = "video" if recipe.evaluation.level == "frame" else "frame"
    figures: dict[str, Any] = {
        **threshold_figures(threshold),
        "level": recipe.evaluation.level,
        **pad.evaluate(levels[recipe.evaluation.level], threshold.value),
        other_level: pad.evaluate(levels[other_level], threshold.value),
    }
    if recipe.evaluation.resamples:
        figures["intervals"] = {
            level: intervals(
                scored, threshold.value, recipe.evaluation.resamples, numpy_rng(recipe.runtime.seed, "bootstrap", level)
            ).as_json()
            for level, scored in levels.items()
        }
    return figures


def threshold_figures(threshold: Threshold) -> dict[str, Any]:
    """Return a threshold with its rule and its errors on the data of the choice."""
    return {
        "threshold_rule": threshold.rule,
        "threshold": threshold.value,
        "threshold_source": {"far": threshold.far, "frr": threshold.frr},
        **({"operating_point": threshold.operating_point} if threshold.estimates else {}),
    }


def compare_attacks(scores: Scores, threshold: float, level: str, groups: Groups) -> dict[str, Any]:
    """Return the rates of each group of frames, at a level, and their variation."""
    at_level = by_video if level == "video" else lambda frames: frames
    return compare_groups(groups, lambda mask, rng: attack_rates(at_level(scores.where(mask)), threshold, rng))


def mean_figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Average metrics over members, key by key; text must agree, and intervals of members are left out."""
    mean: dict[str, Any] = {}
    for key in rows[0]:
        values = [row[key] for row in rows if row.get(key) is not None]
        if key == "intervals" or not values:
            continue
        if isinstance(values[0], dict):
            mean[key] = mean_figures(values)
        else:
            mean[key] = values[0] if isinstance(values[0], str) else float(np.mean(values))
    return mean
