"""Error rates of presentation attack detection, as defined by ISO/IEC 30107-3 and the papers.

All functions use one decision rule: a face is classified as live if and only if its logit is ≥ the threshold.
Therefore:

- APCER is the share of attacks (of one species) classified as live; FAR is the same over all attacks pooled.
- BPCER, also called FRR, is the share of bona fide classified as attacks.
- HTER = (FAR + FRR) / 2, ACER = (highest APCER of a species + BPCER) / 2.

A rate over an empty class is undefined: functions return NaN, and `evaluate` converts it to None.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.scores import FloatArray, Scores

Attacks = Literal["worst-species", "pooled"]
BPCER_TARGETS = {"10pct": 0.10, "5pct": 0.05, "1pct": 0.01}


@dataclass(frozen=True)
class ErrorCurve:
    """FAR and FRR at every distinct threshold; the last axis runs from "all live" to "all attacks".

    Point 0 is any threshold ≤ the lowest logit; point k is any threshold above the k-th distinct logit and not above
    the next one. Leading axes, if present, are resamples.
    """

    level: FloatArray  # the distinct logits, ascending: one fewer than points
    far: FloatArray
    frr: FloatArray


def error_curve(live: FloatArray, label: NDArray[np.int64], weight: FloatArray | None = None) -> ErrorCurve:
    """Return the error curve; rows of `weight`, one per resample, give the count of each score."""
    order = np.argsort(live, kind="stable")
    level, first = np.unique(live[order], return_index=True)
    last = np.append(first[1:], len(live)) - 1
    genuine = label[order] == 1
    ordered = np.ones(len(live)) if weight is None else weight[..., order]
    bona_fide_below = _below(ordered * genuine, last)
    attack_below = _below(ordered * ~genuine, last)
    with np.errstate(invalid="ignore"):  # an empty class: 0/0 gives NaN as intended
        frr = bona_fide_below / bona_fide_below[..., -1:]
        far = 1 - attack_below / attack_below[..., -1:]
    return ErrorCurve(level, far, frr)


def curve_eer(far: FloatArray, frr: FloatArray) -> FloatArray:
    """Return the equal error rate, where the line segments through the points of FAR and FRR cross.

    FAR − FRR falls from 1 to −1, so there is one crossing; it is interpolated linearly between points.
    """
    after = np.maximum((far - frr <= 0).argmax(axis=-1), 1)[..., None]
    far_before, far_after = (np.take_along_axis(far, index, -1)[..., 0] for index in (after - 1, after))
    frr_before, frr_after = (np.take_along_axis(frr, index, -1)[..., 0] for index in (after - 1, after))
    gap = far_before - frr_before
    share = gap / (gap - (far_after - frr_after))
    return np.asarray(far_before + share * (far_after - far_before))


def curve_auc(far: FloatArray, frr: FloatArray) -> FloatArray:
    """Return the area under the ROC by trapezoids; tied scores form one slanted step worth half, as in scikit-learn."""
    return np.asarray(np.trapezoid(1 - frr, -far, axis=-1))


def far_frr(scores: Scores, threshold: float) -> tuple[float, float]:
    """Return pooled APCER and BPCER at a threshold."""
    return _share(scores.attack >= threshold), _share(scores.bona_fide < threshold)


def hter(scores: Scores, threshold: float) -> float:
    """Return the half total error rate at a threshold, from pooled APCER."""
    return sum(far_frr(scores, threshold)) / 2


def eer(scores: Scores) -> float:
    """Return the equal error rate at the interpolated crossing of FAR and FRR (see `curve_eer`)."""
    if not _two_classes(scores):
        return math.nan
    curve = error_curve(scores.live, scores.label)
    return float(curve_eer(curve.far, curve.frr))


def auc(scores: Scores) -> float:
    """Return the area under the ROC: the probability that a bona fide item scores above an attack; ties count half."""
    if not _two_classes(scores):
        return math.nan
    curve = error_curve(scores.live, scores.label)
    return float(curve_auc(curve.far, curve.frr))


def strictest_threshold(bona_fide: FloatArray, bpcer_at_most: float) -> float:
    """Return the highest threshold that rejects at most this share of the bona fide."""
    rejected = largest_count(bpcer_at_most, len(bona_fide))
    return float(np.sort(bona_fide)[rejected]) if rejected < len(bona_fide) else math.inf


def tpr_at_fpr(scores: Scores, fpr: float = 0.01) -> float:
    """Return the share of attacks detected at the strictest threshold with BPCER ≤ `fpr`.

    This follows FedSIS: the attack is the positive class, so FPR is BPCER and TPR is 1 − pooled APCER.
    """
    if not _two_classes(scores):
        return math.nan
    return _share(scores.attack < strictest_threshold(scores.bona_fide, fpr))


def bpcer(scores: Scores, threshold: float) -> float:
    """Return the share of bona fide items classified as attacks."""
    return _share(scores.bona_fide < threshold)


def apcer_by_species(scores: Scores, threshold: float) -> dict[str, float]:
    """Return the share of attacks classified as live for each species, in alphabetical order."""
    return {name: _share(live >= threshold) for name, live in attacks_by_species(scores).items()}


def apcer(scores: Scores, threshold: float, attacks: Attacks = "worst-species") -> float:
    """Return the highest APCER of a species, or with "pooled" the APCER over all attacks."""
    if attacks == "pooled":
        return _share(scores.attack >= threshold)
    return max(apcer_by_species(scores, threshold).values(), default=math.nan)


def acer(scores: Scores, threshold: float) -> float:
    """Return the mean of the highest APCER of a species and BPCER."""
    return (apcer(scores, threshold) + bpcer(scores, threshold)) / 2


def bpcer_at_apcer(scores: Scores, target: float, attacks: Attacks = "worst-species") -> float:
    """Return the lowest BPCER at which APCER is ≤ `target`, for every species or for all attacks pooled."""
    if not _two_classes(scores):
        return math.nan
    groups = [scores.attack] if attacks == "pooled" else list(attacks_by_species(scores).values())
    # To accept at most `allowed` attacks of a group, the threshold must lie just above the next-best attack.
    accepted = [largest_count(target, len(group)) for group in groups]
    next_best = [np.sort(group)[-1 - k] for group, k in zip(groups, accepted, strict=True) if k < len(group)]
    return _share(scores.bona_fide <= max(next_best)) if next_best else 0.0


def attacks_by_species(scores: Scores) -> dict[str, FloatArray]:
    """Return the logits of each attack species, in alphabetical order of species."""
    species = scores.species[scores.label == 0]
    return {str(name): scores.attack[species == name] for name in np.unique(species)}


def evaluate(scores: Scores, threshold: float) -> dict[str, Any]:
    """Return every figure at a threshold in the format of `metrics.json`, with None for undefined values."""
    figures: dict[str, Any] = {
        "hter": hter(scores, threshold),
        "eer": eer(scores),
        "auc": auc(scores),
        "tpr_at_fpr_1pct": tpr_at_fpr(scores, 0.01),
        "apcer": apcer_by_species(scores, threshold),
        "apcer_pooled": apcer(scores, threshold, "pooled"),
        "bpcer": bpcer(scores, threshold),
        "acer": acer(scores, threshold),
        "bpcer_at_apcer": {name: bpcer_at_apcer(scores, target) for name, target in BPCER_TARGETS.items()},
        "count": {"bona_fide": len(scores.bona_fide), "attack": len(scores.attack)},
    }
    return {key: _replace_nan(value) for key, value in figures.items()}


def largest_count(share: float, count: int) -> int:
    """Return the largest integer that is at most `share` of `count`: 29 for 0.29 of 100, despite binary fractions."""
    return math.floor(share * count + 1e-9)


def _below(weight: FloatArray, last: NDArray[np.int64]) -> FloatArray:
    total = np.cumsum(weight, axis=-1)[..., last]
    return np.concatenate([np.zeros((*total.shape[:-1], 1)), total], axis=-1)


def _two_classes(scores: Scores) -> bool:
    return bool((scores.label == 1).any() and (scores.label == 0).any())


def _share(hits: NDArray[np.bool_]) -> float:
    return float(hits.mean()) if len(hits) else math.nan


def _replace_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
