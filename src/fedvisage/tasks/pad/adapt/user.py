"""Adapting a finished model at the user: entropy is minimised over the scale and shift of normalisation layers.

Shao et al. 2021 (see :mod:`fedvisage.tasks.pad.adapt.entropy`), §III-B: no labels, no training data, everything but
scale and shift stays fixed, Adam with rate 5e-3. The paper leaves the loop open; ``loops.py`` has four. With a gate
(``gate.py``), images that must not be adapted to and adaptations that went wrong keep the source model's decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedvisage.data.batches import Positions, View
from fedvisage.errors import UserError
from fedvisage.federation.members import joined, members_of
from fedvisage.federation.method import Message
from fedvisage.nn.batchnorm import StatisticsMeter
from fedvisage.recipe import Adapt
from fedvisage.tasks.pad.adapt.gate import Glimpse, closed, collapsed, sampled
from fedvisage.tasks.pad.adapt.learner import Learner
from fedvisage.tasks.pad.adapt.loops import LOOPS, parts_of, units_of
from fedvisage.tasks.scoring import Logits, Scorer, as_logits, mean_score


@dataclass(frozen=True)
class Source:
    """What the sites know of a model besides its weights: its threshold, and how far their own batches scatter."""

    threshold: float
    scatter: float


@dataclass
class Outcome:
    """What became of an adaptation, in images: adapted to, kept back by the gate, or taken back afterwards."""

    adapted: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    taken_back: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for metrics.json."""
        return {
            "adapted": self.adapted,
            "skipped": dict(sorted(self.skipped.items())),
            "taken_back": dict(sorted(self.taken_back.items())),
        }


def adapted_scores(
    scorer: Scorer, finished: Message, view: View, settings: Adapt, sources: Mapping[str, Source]
) -> tuple[dict[str, Logits], dict[str, Outcome]]:
    """Adapt every member on its own; return live logits as ``Scorer.scores`` does, and what became of each member."""
    logits, outcomes = {}, {}
    for name, member in sorted(members_of(finished).items()):
        scorer.load(member)
        source = sources.get(name) or sources[""]
        logits[name], outcomes[name] = adapted_logits(scorer, view, settings, source)
    if scorer.method.members == "mean":
        logits = {"": mean_score(list(logits.values()))}
    return logits, outcomes


def adapted_weights(
    scorer: Scorer, finished: Message, view: View, settings: Adapt, sources: Mapping[str, Source]
) -> tuple[Message, dict[str, Outcome]]:
    """Adapt every member on its own, and return the weights that the loop settled on; others have no finished model.

    Members whose images the gate kept back, or whose adaptation was taken back, keep their weights.
    """
    if settings.loop != "settled":
        raise UserError("evaluation.adapt.loop", f"{settings.loop} decides as it goes and leaves no model; use settled")
    members, outcomes = {}, {}
    for name, member in sorted(members_of(finished).items()):
        scorer.load(member)
        found: list[Message] = []

        def keep(found: list[Message] = found) -> None:
            found.append(_weights(scorer))

        source = sources.get(name) or sources[""]
        _, outcome = adapted_logits(scorer, view, settings, source, keep)
        kept = outcome.skipped or outcome.taken_back
        members[name] = member if kept or not found else {**member, **found[0]}
        outcomes[name] = outcome
    return joined(members), outcomes


def _weights(scorer: Scorer) -> Message:
    return {name: value.detach().cpu().clone() for name, value in scorer.net.state_dict().items()}


def adapted_logits(
    scorer: Scorer, view: View, settings: Adapt, source: Source, settled: Callable[[], None] = lambda: None
) -> tuple[Logits, Outcome]:
    """Return the live logits that the adapted model gives a view's images; the scorer keeps the source model.

    The source model is asked about a sample first. Only where images keep its decisions is it asked about all of them.
    ``settled`` is called when everything is decided, while the scorer still has the adapted model.
    """
    units, outcome = units_of(view, settings, scorer.recipe.runtime.seed), Outcome()
    opinion = np.full(len(view), np.nan)
    passed = []
    for unit in units:
        reason = _closed(scorer, view, unit, settings, source, opinion)
        if reason:
            outcome.skipped[reason] += len(unit)
        else:
            passed.append(unit)
    logits, decided, reason = opinion.copy(), np.isfinite(opinion), ""
    with Learner(scorer, view, settings) as learner:
        for positions, adapted in LOOPS[settings.loop](learner, passed):
            judged = settings.gate and bool(np.isfinite(opinion[positions]).all())
            if judged:
                reason = collapsed(opinion[positions], adapted, source.threshold)
            if judged and reason:
                learner.reset()  # what follows its sample is then decided by the source model
            else:
                logits[positions], decided[positions] = adapted, True
            if reason:
                outcome.taken_back[reason] += len(positions)
            else:
                outcome.adapted += len(positions)
        settled()
    if not decided.all():
        logits[~decided] = scorer.logits(view.subset(np.flatnonzero(~decided)))
    return logits, outcome


def _closed(scorer: Scorer, view: View, unit: Positions, settings: Adapt, source: Source, opinion: Logits) -> str:
    """Return why a unit is not adapted to, or nothing; note what the source model says of a sample of it."""
    if not settings.gate:
        return "a single image" if len(unit) == 1 else ""
    sample = sampled(parts_of(unit, view, settings, scorer.recipe.runtime.seed))
    with torch.inference_mode(), StatisticsMeter(scorer.net) as meter:
        for positions in sample:
            opinion[positions] = as_logits(scorer.live(view, positions))
    glimpse = Glimpse(opinion[np.concatenate(sample)], len(np.unique(view.videos[unit])), meter.shift)
    return closed(glimpse, source.threshold, source.scatter)
