"""Confidence intervals of figures for other people in front of the camera, bootstrapped by subject.

Frames of one person are similar, so resampling frames would give intervals that are too narrow. Instead, whole subjects
are drawn with replacement, and every figure is recomputed with each score counted as often as its subject was drawn.
The 2.5 % and 97.5 % quantiles over the draws form the 95 % interval.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.pad import curve_auc, curve_eer, error_curve
from fedvisage.metrics.scores import FloatArray, Scores

FIGURES = ("hter", "eer", "auc", "tpr_at_fpr_1pct", "apcer_worst", "apcer_pooled", "bpcer", "acer")
BAND_AT: FloatArray = np.unique(np.concatenate([[0.0], np.geomspace(1e-4, 1, 80), np.linspace(0, 1, 81)]))
VALUES_AT_ONCE = 2_000_000  # blocks of resamples hold about this many weights (16 MB per array)


@dataclass(frozen=True)
class Intervals:
    """95 % intervals per figure, and the number of resamples behind them."""

    bounds: dict[str, tuple[float, float]]
    used: int
    skipped: int  # resamples without attacks or without bona fide items, where figures are undefined

    def as_json(self) -> dict[str, list[float]]:
        """Return the bounds in the shape of `metrics.json`."""
        return {name: [low, high] for name, (low, high) in self.bounds.items()}


@dataclass(frozen=True, eq=False)
class Band:
    """95 % intervals of an error curve: FRR at each FAR."""

    far: FloatArray
    low: FloatArray
    high: FloatArray


def intervals(scores: Scores, threshold: float, resamples: int, rng: np.random.Generator) -> Intervals:
    """Return a 95 % interval for each of FIGURES; empty unless both classes and two subjects are present."""
    if resamples < 1:
        raise ValueError(f"needs at least one resample, got {resamples}")
    if len(np.unique(scores.label)) < 2:
        return Intervals({}, 0, resamples)
    parts = [resampled_figures(scores, threshold, weight) for weight in _draw_weights(scores, resamples, rng)]
    if not parts:
        return Intervals({}, 0, resamples)
    figures = {name: np.concatenate([part[name] for part in parts]) for name in FIGURES}
    bounds = {name: np.quantile(values, [0.025, 0.975]) for name, values in figures.items()}
    used = len(figures["hter"])
    return Intervals({name: (float(low), float(high)) for name, (low, high) in bounds.items()}, used, resamples - used)


def band(scores: Scores, resamples: int, rng: np.random.Generator) -> Band | None:
    """Return the confidence band of the error curve, as FRR at each FAR; None unless both classes are present."""
    if resamples < 1 or len(np.unique(scores.label)) < 2:
        return None
    rates: list[FloatArray] = []
    for weight in _draw_weights(scores, resamples, rng):
        curve = error_curve(scores.live, scores.label, weight)
        rates += [np.interp(BAND_AT, far[::-1], frr[::-1]) for far, frr in zip(curve.far, curve.frr, strict=True)]
    if not rates:
        return None
    low, high = np.quantile(rates, [0.025, 0.975], axis=0)
    return Band(BAND_AT, low, high)


def _draw_weights(scores: Scores, resamples: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """Draw subjects with replacement; yield the resulting counts of the scores, one row per resample.

    They are drawn and returned in blocks that fit in memory, which changes no draw. Resamples without attacks or
    without bona fide items are skipped. One subject alone has no resamples.
    """
    cluster, block = clusters(scores), max(1, VALUES_AT_ONCE // len(scores))
    subjects = int(cluster.max()) + 1
    if subjects < 2:  # every draw would be the same
        return
    totals = np.stack([np.bincount(cluster[scores.label == row], minlength=subjects) for row in (0, 1)], axis=1)
    waiting: FloatArray = np.empty((0, subjects))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        draws = draw_people(subjects, size, rng)
        both = (draws @ totals.astype(np.float64) > 0).all(axis=1)
        waiting = np.concatenate([waiting, draws[both]])
        # Only the last block may be shorter, because the last bits of sums depend on the number of rows.
        if len(waiting) >= block:
            yield waiting[:block][:, cluster]
            waiting = waiting[block:]
    if len(waiting):
        yield waiting[:, cluster]


def draw_people(people: int, resamples: int, rng: np.random.Generator) -> FloatArray:
    """Draw people with replacement: how often each is drawn, one row per resample."""
    return rng.multinomial(people, np.full(people, 1 / people), size=resamples).astype(np.float64)


def clusters(scores: Scores) -> NDArray[np.int64]:
    """Return each score's subject as a number; an unknown subject is replaced by the video, then the item."""
    name_sources = [("subject", scores.subject), ("video", scores.video), ("item", scores.item)]
    name = np.full(len(scores), "", dtype=object)
    for kind, texts in name_sources:
        name = np.where((name == "") & (texts != ""), np.array([f"{kind}:{text}" for text in texts], object), name)
    return np.unique(name.astype(str), return_inverse=True)[1].astype(np.int64)


def resampled_figures(scores: Scores, threshold: float, weight: FloatArray) -> dict[str, FloatArray]:
    """Return every figure for each row of `weight`, the counts of the scores."""
    curve = error_curve(scores.live, scores.label, weight)
    point = int(np.searchsorted(curve.level, threshold, side="left"))  # number of levels below the threshold
    far, frr = curve.far[:, point], curve.frr[:, point]
    worst = _worst_apcer(scores, threshold, weight)
    last = (curve.frr <= 0.01 + 1e-12).sum(axis=-1) - 1  # the last point with BPCER of at most 1 %
    return {
        "hter": (far + frr) / 2,
        "eer": curve_eer(curve.far, curve.frr),
        "auc": curve_auc(curve.far, curve.frr),
        "tpr_at_fpr_1pct": 1 - np.take_along_axis(curve.far, last[:, None], axis=-1)[:, 0],
        "apcer_worst": worst,
        "apcer_pooled": far,
        "bpcer": frr,
        "acer": (worst + frr) / 2,
    }


def _worst_apcer(scores: Scores, threshold: float, weight: FloatArray) -> FloatArray:
    """Return the highest APCER among the species present in each resample."""
    rates = []
    for name in np.unique(scores.species[scores.label == 0]):
        members = (scores.label == 0) & (scores.species == name)
        total = weight @ members.astype(np.float64)
        accepted = weight @ (members & (scores.live >= threshold)).astype(np.float64)
        rates.append(np.divide(accepted, total, out=np.full(len(weight), -np.inf), where=total > 0))
    return np.asarray(np.max(rates, axis=0))
