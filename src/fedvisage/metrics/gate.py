"""When not to adapt, and when to take an adaptation back. Entropy minimisation can ruin a good model.

On a batch of one class, entropy is least when the decision boundary leaves that class; on images whose BatchNorm
statistics are the stored ones, there is nothing to gain. So images pass the gate only if they are many and varied
enough, if the source model finds both classes among them, and if their statistics lie further from the stored ones
than batches of one site do from each other. What came of the adaptation is compared with the source model's opinion.

All limits are stated here and none was chosen on a user's data: they say what collapse means, not what works best.
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
class Glimpse:
    """What the source model sees of images, or of a sample of them, before anything is adapted."""

    logits: Logits
    videos: int
    shift: float | None


def closed(glimpse: Glimpse, threshold: float, scatter: float) -> str:
    """Return why a batch must not be adapted to, or nothing."""
    if len(glimpse.logits) < SMALLEST_BATCH:
        return "too small"
    if glimpse.videos < FEWEST_VIDEOS:
        return "too few videos"
    if rarest_share(glimpse.logits, threshold) < RAREST_CLASS:
        return "one class"
    if glimpse.shift is not None and glimpse.shift <= scatter:
        return "not moved"
    return ""


def sampled(batches: Sequence[Positions]) -> Sequence[Positions]:
    """Return those of a unit's mixed batches that are enough for a glimpse: a quarter of the images, at least 64."""
    ends = np.cumsum([len(batch) for batch in batches])
    enough = min(ends[-1], max(SMALLEST_GLIMPSE, ends[-1] * SAMPLED))
    return batches[: 1 + int(np.searchsorted(ends, enough))]


def collapsed(source: Logits, adapted: Logits, threshold: float) -> str:
    """Return why an adaptation must be taken back, or nothing."""
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
    """Return Spearman's correlation, ties sharing their mean rank; zero where one side is constant."""
    from scipy.stats import rankdata  # half a second, which every process that trains would wait for

    ranks = np.stack([rankdata(first), rankdata(second)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(ranks, axis=1)
    return float(ranks[0] @ ranks[1] / lengths.prod()) if lengths.all() else 0.0
