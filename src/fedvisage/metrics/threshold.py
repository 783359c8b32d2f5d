"""Decision thresholds between live and attack by named rules, from histograms of scores, and figures by papers' rules.

The target's labels must not choose the threshold that the target is evaluated with. The honest rules (`source-…`) use
the sites' held-out scores, and the sites send only histograms of them: counts in fixed bins of the logit. FAR and FRR
are computed at the bin edges for each site and averaged with equal weight per site ("determined on the data in all data
centers"). `target-eer` uses the target's labels; it exists only for comparison with published code that does so. Papers
whose sites hold nothing out choose the threshold with equal errors on the pooled training scores of all sites:
`source-train-eer` pools the counts instead of averaging the rates.

A bin includes its lower edge, so the counts above an edge are exactly the scores ≥ that edge. Logits beyond the ends
are counted in the end bins, because the decision does not depend on their distance.

`published` returns figures by the rules of papers, for comparison with their tables only. Two rules differ from a run's
own:

- **Threshold.** FedSIS and FLIP report the HTER at the threshold where the errors on the *target's* images are closest
  to each other (`hter_target_eer`, the highest such threshold). FedGPAD and its test-time adaptation use the threshold
  of equal errors on training scores (`hter_train_eer`).
- **Positive class.** FedSIS and FLIP report the share of bona fide images accepted where at most 1 % of the attacks are
  (`tpr_bona_fide_1pct`), so bona fide is their positive class. FedSIS's text has it the other way round, which is
  `tpr_at_fpr_1pct`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.metrics.pad import bpcer_at_apcer, curve_auc, curve_eer, error_curve, far_frr, hter
from fedvisage.metrics.scores import FloatArray, Scores

BINS = 4096
LIMIT = 20.0
EDGES: FloatArray = np.linspace(-LIMIT, LIMIT, BINS + 1)  # steps of 5/512: exact in binary
NEAR_END = LIMIT - 1  # scores beyond ±LIMIT are counted together, and hide a better threshold than one beyond this
FIXED = 0.0
ROUNDING = 1e-12  # smaller differences count as equal: 1 − 1/3 is not exactly 2/3

SOURCE_BPCER = {"source-bpcer-1pct": 0.01, "source-bpcer-5pct": 0.05, "source-bpcer-10pct": 0.10}
ON_TRAINING = "source-train-eer"
SOURCE_RULES = ("source-eer", ON_TRAINING, *SOURCE_BPCER, "fixed")  # need the sites' histograms
ORACLE_RULES = ("target-eer",)  # need the target's labels
RULES = (*SOURCE_RULES, *ORACLE_RULES)

Histogram = NDArray[np.int64]  # [2, BINS]: row 0: attacks, row 1: bona fide


def describe_rule(rule: str) -> str:
    """Return how a threshold was chosen, for people."""
    return "fixed beforehand" if rule == "fixed" else f"chosen by {rule}"


OF_PICTURES = "BPCER of these pictures"
OF_FURTHER = "BPCER expected of further pictures"
"""The estimates of a threshold that was calibrated to one camera, in place of the sites' rates."""

_OF_CAMERA = {OF_PICTURES: ("these pictures", "rejected"), OF_FURTHER: ("further pictures", "expected")}


@dataclass(frozen=True)
class Estimate:
    """An error rate and its 95 % interval for other people."""

    rate: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return rate and interval as text."""
        return f"{_percent(self.rate)} (95%: {_percent(self.low)} to {_percent(self.high)})"


@dataclass(frozen=True)
class Threshold:
    """A threshold, its rule, and its error rates on the data that determined it."""

    value: float
    rule: str
    far: float | None
    frr: float | None
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """Error rates with intervals by name, such as ``APCER print``, if a user asked for this operating point."""
    place: str = "at the sites"
    """The place, for people, where ``far`` and ``frr`` were measured."""

    @property
    def operating_point(self) -> str:
        """The rule, and the estimates if there are any, as text."""
        rates = ", ".join(_describe_estimate(name, estimate) for name, estimate in self.estimates.items())
        return f"{self.rule}: {rates}" if rates else self.rule


@dataclass(frozen=True)
class ErrorRates:
    """FAR and FRR at the BINS + 1 edges; None for a class that no site has."""

    far: FloatArray | None
    frr: FloatArray | None


def histogram(logits: FloatArray, labels: NDArray[np.int64]) -> Histogram:
    """Count logits in the fixed bins: attacks in row 0, bona fide in row 1."""
    if np.isnan(logits).any():
        raise ValueError("a score is NaN")
    index = np.clip(np.searchsorted(EDGES, logits, side="right") - 1, 0, BINS - 1)
    return np.stack([np.bincount(index[labels == row], minlength=BINS) for row in (0, 1)]).astype(np.int64)


def average_rates(histograms: Sequence[Histogram]) -> ErrorRates:
    """Average the sites' rates with equal weight; a site without a class does not count for that class.

    Pass the histograms in sorted site order, because the last bit of a floating-point sum depends on the order.
    """
    far = [1 - rejected for counts in histograms if (rejected := _share_below(counts[0])) is not None]
    frr = [rejected for counts in histograms if (rejected := _share_below(counts[1])) is not None]
    return ErrorRates(np.mean(far, axis=0) if far else None, np.mean(frr, axis=0) if frr else None)


def threshold_from_histograms(histograms: Sequence[Histogram], rule: str = "source-eer") -> Threshold:
    """Choose a threshold by one of SOURCE_RULES from the sites' histograms, in sorted site order."""
    if rule not in SOURCE_RULES:
        raise UserError("evaluation.threshold", f"unknown rule {rule!r}; choose one of {', '.join(RULES)}")
    rates = average_rates([np.sum(histograms, axis=0)] if rule == ON_TRAINING and histograms else histograms)
    if rule == "fixed":
        value = FIXED
    elif rates.far is None or rates.frr is None:
        does = "trains on" if rule == ON_TRAINING else "holds out"
        lacking = "attacks" if rates.far is None else "bona fide images"
        message = f"rule {rule!r} needs both classes, but no site {does} {lacking}; use 'fixed' or add some"
        raise UserError("evaluation.threshold", message)
    elif rule in ("source-eer", ON_TRAINING):
        value = _crossing(rates.far - rates.frr)
    else:
        value = float(EDGES[np.flatnonzero(rates.frr <= SOURCE_BPCER[rule] + ROUNDING)[-1]])
    return Threshold(value, rule, _rate_at(rates.far, value), _rate_at(rates.frr, value))


def warning_of_end(threshold: float) -> str:
    """Return a warning about a threshold near an end of the counted scores."""
    if abs(threshold) <= NEAR_END:
        return ""
    return f"; warning: log-odds beyond ±{LIMIT:g} are counted together, so there may be a better threshold"


def threshold_from_target(scores: Scores) -> Threshold:
    """Choose the equal-error threshold on the target's own scores: rule `target-eer`, an oracle."""
    if not (len(scores.bona_fide) and len(scores.attack)):
        raise UserError("evaluation.threshold", "'target-eer' needs bona fide and attack images at the target")
    value = exact_crossing(scores.live, scores.label)
    return Threshold(value, "target-eer", *far_frr(scores, value))


def exact_crossing(live: FloatArray, label: NDArray[np.int64]) -> float:
    """Return the threshold where FAR crosses FRR, or the middle of the interval where they are equal."""
    curve = error_curve(live, label)
    difference = curve.far - curve.frr  # point k holds for thresholds in (level[k-1], level[k]]
    above, below = difference > ROUNDING, difference < -ROUNDING
    return float(curve.level[above.sum() - 1] + curve.level[len(below) - below.sum() - 1]) / 2


def auc_from_histogram(counts: Histogram) -> float | None:
    """Return the area under the ROC, with scores of one bin tied; None if a class is missing."""
    rates = average_rates([counts])
    return None if rates.far is None or rates.frr is None else float(curve_auc(rates.far, rates.frr))


def eer_from_histogram(counts: Histogram) -> float | None:
    """Return the equal error rate, interpolated between edges; None if a class is missing."""
    rates = average_rates([counts])
    return None if rates.far is None or rates.frr is None else float(curve_eer(rates.far, rates.frr))


def _share_below(counts: NDArray[np.int64]) -> FloatArray | None:
    """Return the share of counts below each edge."""
    total = int(counts.sum())
    return np.concatenate([[0], np.cumsum(counts)]) / total if total else None


def _crossing(difference: FloatArray) -> float:
    """Return the threshold where FAR − FRR changes sign, or the middle of the interval where it is zero."""
    zeros = np.flatnonzero(np.abs(difference) <= ROUNDING)
    if len(zeros):
        return float(EDGES[zeros[0]] + EDGES[zeros[-1]]) / 2
    after = int(np.flatnonzero(difference < 0)[0])
    return float(EDGES[after] if -difference[after] < difference[after - 1] else EDGES[after - 1])


def _percent(rate: float) -> str:
    digits = 4 if rate < 0.001 else 2 if rate < 0.1 else 1
    return f"{float(f'{100 * rate:.{digits}f}'):g}%"


def _describe_estimate(name: str, estimate: Estimate) -> str:
    """Return an estimate with its name; those of few pictures of one camera in whole per cent."""
    if name not in _OF_CAMERA:
        return f"{name} {estimate}"
    pictures, verb = _OF_CAMERA[name]
    # Half a per cent is rounded up, as on the web page; a lower rate is not zero.
    rate, low, high = (f"{int(100 * share + 0.5)}%" for share in (estimate.rate, estimate.low, estimate.high))
    rate = "<1%" if 0 < estimate.rate < 0.005 else rate
    return f"{pictures}: {rate} {verb} (95%: {low} to {high})"


def _rate_at(rate: FloatArray | None, value: float) -> float | None:
    return None if rate is None else float(np.interp(value, EDGES, rate))


# Figures by the rules of papers.


RATE = 0.01

RATES = {
    "hter_target_eer": "HTER at the threshold of equal errors on the target's own images",
    "hter_train_eer": "HTER at the threshold of equal errors on the scores of training",
    "tpr_bona_fide_1pct": "bona fide accepted where 1 % of the attacks are",
}
"""Descriptions of the rates."""


def figures_as_published(scores: Scores, trained: Threshold | None) -> dict[str, float]:
    """Return the figures of a target with both classes; ``trained`` is the threshold from the training scores."""
    if not (len(scores.bona_fide) and len(scores.attack)):
        return {}
    target_threshold = closest_threshold(scores)
    figures = {
        "hter_target_eer": hter(scores, target_threshold),
        "threshold_target_eer": target_threshold,
        "tpr_bona_fide_1pct": 1 - bpcer_at_apcer(scores, RATE, "pooled"),
    }
    if trained is not None:
        figures |= {"hter_train_eer": hter(scores, trained.value), "threshold_train_eer": trained.value}
    return figures


def closest_threshold(scores: Scores) -> float:
    """Return the threshold where FAR and FRR are closest; they need not cross there."""
    curve = error_curve(scores.live, scores.label)
    gaps = np.abs(curve.far - curve.frr)
    point = int(np.flatnonzero(gaps <= gaps.min() + ROUNDING)[-1])
    above: float = np.nextafter(curve.level[-1], np.inf)
    return float(curve.level[point]) if point < len(curve.level) else above
