"""Adapting a finished model at the user: entropy is minimised over the scale and shift of normalisation layers.

Shao et al. 2021 (see :mod:`fedvisage.adapt.entropy`), §III-B: no labels, no training data, everything but scale and
shift stays fixed, Adam with rate 5e-3. The paper leaves the loop open; :mod:`fedvisage.adapt.loops` has four. With a
gate (:mod:`fedvisage.adapt.gate`), images that must not be adapted to and adaptations that went wrong keep the source
model's decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedvisage.adapt.gate import Glimpse, closed, collapsed, sampled
from fedvisage.adapt.learner import Learner
from fedvisage.adapt.loops import LOOPS, parts_of, units_of
from fedvisage.data.batches import Positions, View
from fedvisage.federation.method import Message
from fedvisage.federation.scoring import Logits, Scorer, as_logits, mean_score, members_of
from fedvisage.nn.batchnorm import StatisticsMeter
from fedvisage.settings import Adapt


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


def adapted_logits(scorer: Scorer, view: View, settings: Adapt, source: Source) -> tuple[Logits, Outcome]:
    """Return the live logits that the adapted model gives a view's images; the scorer keeps the source model.

    The source model is asked about a sample first. Only where images keep its decisions is it asked about all of them.
    """
    units, outcome = units_of(view, settings, scorer.recipe.runtime.seed), Outcome()
    opinion: dict[int, float] = {}
    passed = []
    for unit in units:
        reason = _closed(scorer, view, unit, settings, source, opinion)
        if reason:
            outcome.skipped[reason] += len(unit)
        else:
            passed.append(unit)
    logits, decided, reason = np.zeros(len(view)), np.zeros(len(view), bool), ""
    with Learner(scorer, view, settings) as learner:
        for positions, adapted in LOOPS[settings.loop](learner, passed):
            if learner.moved or not reason:
                reason = _collapsed(positions, adapted, source, opinion) if settings.gate else ""
            if reason and learner.moved:
                learner.reset()
            else:
                logits[positions], decided[positions] = adapted, True
            if reason:
                outcome.taken_back[reason] += len(positions)
            else:
                outcome.adapted += len(positions)
    for position, logit in opinion.items():
        if not decided[position]:
            logits[position], decided[position] = logit, True
    if not decided.all():
        logits[~decided] = scorer.logits(view.subset(np.flatnonzero(~decided)))
    return logits, outcome


def _closed(
    scorer: Scorer, view: View, unit: Positions, settings: Adapt, source: Source, opinion: dict[int, float]
) -> str:
    """Return why a unit is not adapted to, or nothing; note what the source model says of a sample of it."""
    if not settings.gate:
        return "a single image" if len(unit) == 1 else ""
    logits = []
    with torch.inference_mode(), StatisticsMeter(scorer.net) as meter:
        for positions in sampled(parts_of(unit, view, settings, scorer.recipe.runtime.seed)):
            logits.append(as_logits(scorer.live(view, positions)))
            opinion.update(zip(positions.tolist(), logits[-1].tolist(), strict=True))
    videos = len(np.unique(view.videos[unit]))
    return closed(Glimpse(np.concatenate(logits), videos, meter.shift), source.threshold, source.scatter)


def _collapsed(positions: Positions, adapted: Logits, source: Source, opinion: Mapping[int, float]) -> str:
    """Return why an adaptation is taken back, or nothing, by those images that the source model was asked about."""
    asked = [place for place, position in enumerate(positions.tolist()) if position in opinion]
    before = np.array([opinion[position] for position in positions[asked].tolist()])
    return collapsed(before, adapted, adapted[asked], source.threshold)
