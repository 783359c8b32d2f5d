"""Criteria for skipping a test-time adaptation and for undoing it. Entropy minimisation can ruin a good model.

On a batch of one class, entropy is lowest when the decision boundary moves away from that class. On images whose
BatchNorm statistics equal the stored ones, there is nothing to gain. Images therefore pass the gate only if there are
enough of them from enough videos, if the source model predicts both classes, and if their statistics lie further from
the stored ones than batches of one site lie from each other. Afterwards the adapted predictions are compared with those
of the source model.

All limits are defined here. They define collapse and are not optimised for accuracy; a first form of the gate was
replaced after its cost had been seen on two targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Logits = NDArray[np.float64]

SAMPLED, SMALLEST_GLIMPSE = 0.25, 64
SMALLEST_BATCH = 16
FEWEST_VIDEOS = 4
RAREST_CLASS = 0.05
LOST_CLASS = 0.01
LEAST_AGREEMENT = 0.5


@dataclass(frozen=True)
class SourcePredictions:
    """The source model's output on images, or on a sample of them, before any adaptation."""

    logits: Logits
    videos: int
    shift: float | None


def refusal_reason(glimpse: SourcePredictions, threshold: float, scatter: float) -> str:
    """Return the reason not to adapt to a batch, or ""."""
    if len(glimpse.logits) < SMALLEST_BATCH:
        return "too small"
    if glimpse.videos < FEWEST_VIDEOS:
        return "too few videos"
    if rarest_share(glimpse.logits, threshold) < RAREST_CLASS:
        return "one class"
    if glimpse.shift is not None and glimpse.shift <= scatter:
        return "not moved"
    return ""


def sample_batches(batches: Sequence[Positions]) -> Sequence[Positions]:
    """Return the first mixed batches of a unit that hold a quarter of the images, but at least 64."""
    ends = np.cumsum([len(batch) for batch in batches])
    enough = min(ends[-1], max(SMALLEST_GLIMPSE, ends[-1] * SAMPLED))
    return batches[: 1 + int(np.searchsorted(ends, enough))]


def collapse_reason(source: Logits, adapted: Logits, threshold: float) -> str:
    """Return the reason to undo an adaptation, or ""."""
    if not np.isfinite(adapted).all():
        return "scores are not finite"
    if rarest_share(adapted, threshold) < LOST_CLASS:
        return "one class is left"
    if rank_correlation(source, adapted) < LEAST_AGREEMENT:
        return "the order of scores has changed"
    return ""


def rarest_share(logits: Logits, threshold: float) -> float:
    """Return the share of the rarer decision."""
    live = float(np.mean(logits >= threshold))
    return min(live, 1 - live)


def rank_correlation(first: Logits, second: Logits) -> float:
    """Return Spearman's correlation with tied ranks averaged; zero if one side is constant."""
    # Imported here because it would delay every training process by half a second.
    from scipy.stats import rankdata

    ranks = np.stack([rankdata(first), rankdata(second)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(ranks, axis=1)
    return float(ranks[0] @ ranks[1] / lengths.prod()) if lengths.all() else 0.0
