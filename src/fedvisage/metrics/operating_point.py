"""Averaged error-rate curves of the sites' held-out people, and operating points that are chosen on them later.

A model keeps the curves, so that its user can ask for a rate (``bpcer=1%``) instead of the run's threshold.
Attack detection: BPCER, and APCER of all attacks and by attack type; each is the sites' mean with equal weight.
Recognition: FNMR and FMR over all pairs. A curve is kept only if at least three sites contribute to it, because one of
two sites could subtract its own. The rates are those at every eighth edge of the histograms' bins, rounded up to two
digits, so that their steps do not show single scores.

Images of one person are similar, so people are counted: a rate needs 3 / rate of them (without any error among them,
the rate would be its 95 % upper bound), and intervals are Wilson's for that number. If the sites differ in size, the
number is that of equally large sites whose mean would be as precise. For FMR, pairs of people are counted.

A mean says nothing about a further site if the sites disagree. A rate is refused where the rates of two sites differ by
more than it, beyond the difference that 95 % of equal sites with as many people stay below. Curves keep this excess in
coarse steps, so that it does not give away single sites' rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedvisage.base.errors import UserError
from fedvisage.metrics.scores import FloatArray, TextArray
from fedvisage.metrics.threshold import BINS, EDGES, Estimate, Threshold, histogram

LEAST_SITES = 3
"""The smallest number of sites whose mean is kept."""

BONA_FIDE = "bonafide"
ALL = "all"
"""The name of the curve over all attacks, or over all impostor pairs."""

TYPES = ("print", "replay", "cut", "mask", "other")
"""The attack types of curves; ``other`` stands for all further ones."""

CLASSES = (BONA_FIDE, ALL, *TYPES)
"""The classes of attack detection whose scores are counted: bona fide images, all attacks, and each type of attack."""

STEP = 8
"""Histogram bins per point of a curve."""

SUPPORT = 3.0
"""People per rate: with this many and no error, the 95 % upper bound of the error rate is the rate."""

DIFFERENCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Excess differences between sites' rates, and the wishes to compare with, are rounded up to one of these."""

Z = 1.96
PLACE = "--at"
FORMS = "bpcer=1%, apcer=5%, fmr=1e-4 or eer"

Task = Literal["pad", "recognition"]
Rate = Annotated[float, Field(ge=0, le=1)]

MEASURES: Mapping[str, Task] = {"bpcer": "pad", "apcer": "pad", "fmr": "recognition"}
"""The error rates that an operating point can ask for, with their task."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClassCurve(_Frozen):
    """The error rate of one class at each threshold, and the number of people and presentations behind it.

    ``differences`` are the largest between two sites, beyond chance; none in earlier versions, and in recognition.
    """

    rates: tuple[Rate, ...]
    people: int = Field(ge=1)
    presentations: int = Field(ge=1)
    differences: tuple[Rate, ...] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_differences(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Describe a curve of an earlier version as it did, so that its digest stays."""
        values: dict[str, Any] = whole(self)
        return {name: value for name, value in values.items() if value is not None}

    def estimate(self, position: int) -> Estimate:
        """Return the rate at a threshold with its 95 % interval."""
        return Estimate(self.rates[position], *wilson(self.rates[position], self.people))

    @property
    def least_rate(self) -> float:
        """The lowest rate that the people support."""
        return SUPPORT / self.people


class ErrorCurves(_Frozen):
    """Error rates at ascending thresholds: logits of attack detection, or cosines of recognition.

    ``rejected`` is BPCER or FNMR. ``accepted`` is APCER by attack type, or FMR; its entry ``all`` covers every type.
    """

    thresholds: tuple[float, ...] = Field(min_length=2, max_length=BINS // STEP + 1)
    rejected: ClassCurve
    accepted: dict[str, ClassCurve]

    @model_validator(mode="after")
    def _rates_follow_thresholds(self) -> ErrorCurves:
        if ALL not in self.accepted or set(self.accepted) - {ALL, *TYPES}:
            raise ValueError(f"accepted needs {ALL} and accepts {', '.join(TYPES)}")
        curves = [(self.rejected.rates, 1), *((curve.rates, -1) for curve in self.accepted.values())]
        lengths = {len(curve.differences or self.thresholds) for curve in (self.rejected, *self.accepted.values())}
        if {len(rates) for rates, _ in curves} | lengths != {len(self.thresholds)}:
            raise ValueError("each curve needs one rate per threshold")
        if any(second <= first for first, second in pairwise(self.thresholds)):
            raise ValueError("the thresholds must ascend")
        if any(sign * (second - first) < 0 for rates, sign in curves for first, second in pairwise(rates)):
            raise ValueError("a rate moves in the wrong direction")
        return self


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """A site's held-out scores of one class, counted in the fixed bins, with its people and presentations."""

    bins: NDArray[np.int64]
    people: int
    presentations: int


def count_by_type(
    logits: FloatArray, species: TextArray, subjects: TextArray, videos: TextArray
) -> dict[str, ClassCounts]:
    """Count a site's scores of attack detection by class: bona fide, all attacks, and each type of attack."""
    types = np.where(np.isin(species, (BONA_FIDE, *TYPES)), species, TYPES[-1])
    masks = {BONA_FIDE: types == BONA_FIDE, ALL: types != BONA_FIDE, **{name: types == name for name in TYPES}}
    return {
        name: ClassCounts(
            histogram(logits[mask], np.ones(int(mask.sum()), np.int64))[1],
            len(np.unique(subjects[mask])),
            len(np.unique(videos[mask])),
        )
        for name, mask in masks.items()
    }


def average_curves(
    rejected: Sequence[ClassCounts], accepted: Mapping[str, Sequence[ClassCounts]], *, pooled: bool, scale: float = 1.0
) -> ErrorCurves | None:
    """Average the sites' error rates, in sorted site order; None if fewer than three sites have one of both classes.

    ``pooled`` adds the counts instead of averaging the rates. ``scale`` divides the bins' edges.
    """
    classes = {"": list(rejected), **{name: list(counts) for name, counts in accepted.items()}}
    present = {
        name: [site for site in sites if site.bins.sum() and site.people and site.presentations]
        for name, sites in classes.items()
    }
    curves = {name: _mean(sites, pooled) for name, sites in present.items() if len(sites) >= LEAST_SITES}
    if "" not in curves or ALL not in curves:
        return None
    below = {name: curve.shares for name, curve in curves.items()}
    # Keep the bins from the last before the first change to the first after the last change: no rate changes elsewhere.
    changes = np.flatnonzero(np.any([np.diff(share) != 0 for share in below.values()], axis=0))
    window = slice(int(changes[0]), int(changes[-1]) + 2)
    rates = {
        name: ClassCurve(
            rates=tuple(_rounded_up((share if not name else 1 - share)[window])),
            people=curves[name].people,
            presentations=curves[name].presentations,
            differences=None if pooled else tuple(map(_coarse, curves[name].differences[window].tolist())),
        )
        for name, share in below.items()
    }
    thresholds = tuple((EDGES[::STEP][window] / scale).tolist())
    return ErrorCurves(thresholds=thresholds, rejected=rates.pop(""), accepted=rates)


@dataclass(frozen=True, eq=False)
class _Mean:
    """The share of scores below every eighth edge, and the people and presentations behind it."""

    shares: FloatArray
    people: int
    presentations: int
    differences: FloatArray
    """The largest difference between two sites, beyond chance."""


def _mean(sites: Sequence[ClassCounts], pooled: bool) -> _Mean:
    presentations = sum(site.presentations for site in sites)
    if pooled:
        total = np.sum([site.bins for site in sites], axis=0)
        below = _shares_below(total)
        return _Mean(below, sum(site.people for site in sites), presentations, np.zeros_like(below))
    by_site = np.array([_shares_below(site.bins) for site in sites])
    # The mean of S rates has the variance of one rate over S² / Σ (1 / people) people.
    people = math.floor(len(sites) ** 2 / sum(1 / site.people for site in sites) + 1e-9)
    shares = by_site.mean(axis=0)
    excess = [
        np.abs(first - second) - Z * np.sqrt(shares * (1 - shares) * (1 / some.people + 1 / others.people))
        for (first, some), (second, others) in combinations(zip(by_site, sites, strict=True), 2)
    ]
    return _Mean(shares, max(1, people), presentations, np.maximum(0, np.max(excess, axis=0)))


def _shares_below(bins: NDArray[np.int64]) -> FloatArray:
    return np.asarray(np.concatenate([[0], np.cumsum(bins)])[::STEP] / bins.sum())


def _rounded_up(rates: FloatArray) -> list[float]:
    """Return rates rounded up to two significant digits."""
    rounded = []
    for rate in rates.tolist():
        digit = 10.0 ** (math.floor(math.log10(rate)) - 1) if rate > 0 else 1.0
        rounded.append(min(1.0, float(f"{math.ceil(rate / digit - 1e-6) * digit:.2g}")))
    return rounded


def _coarse(rate: float) -> float:
    """Return a difference or wish rounded up to one of `DIFFERENCES`; zero stays."""
    return next(step for step in (0.0, *DIFFERENCES) if rate <= step * (1 + 1e-9))


def wilson(rate: float, people: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a rate that was measured on a number of people."""
    centre, square = rate + Z * Z / (2 * people), Z * Z / people
    half = Z * math.sqrt(rate * (1 - rate) / people + square / (4 * people))
    return max(0.0, (centre - half) / (1 + square)), min(1.0, (centre + half) / (1 + square))


@dataclass(frozen=True)
class WishedPoint:
    """An operating point as a user asks for it: a measure and its rate, or the equal error rate."""

    text: str
    measure: str
    rate: float = 0.0


def parse_point(text: str) -> WishedPoint:
    """Read ``bpcer=1%``, ``apcer=5%``, ``fmr=1e-4`` or ``eer``."""
    plain = text.strip().lower()
    if plain == "eer":
        return WishedPoint(plain, plain)
    match = re.fullmatch(r"(bpcer|apcer|fmr)=(\d+\.?\d*(?:e-?\d+)?|\.\d+)(%?)", plain)
    if match is None:
        raise UserError(PLACE, f"{text[:80]!r} is not an operating point; give {FORMS}")
    rate = float(match[2]) / (100 if match[3] else 1)
    if not 0 < rate < 1:
        raise UserError(PLACE, f"{text[:80]!r} is not a rate between 0 and 1; give {FORMS}")
    return WishedPoint(plain, match[1], rate)


def choose_point(curves: ErrorCurves | None, text: str, task: Task, model: str, *, exported: bool = False) -> Threshold:
    """Choose the threshold of an operating point on a model's curves, with its error rates and their intervals.

    ``bpcer`` gives the highest threshold that rejects at most this share of bona fide images. ``apcer`` gives the
    lowest that accepts at most this share of every attack type, and ``fmr`` of all impostor pairs. An exported
    detector without curves can be calibrated; its user cannot train it.
    """
    point = parse_point(text)
    if MEASURES.get(point.measure, task) != task:
        fault = (
            "is for recognition; this model detects attacks: give bpcer=…, apcer=… or eer"
            if task == "pad"
            else "is for attack detection; this model recognises people: give fmr=… or eer"
        )
        raise UserError(PLACE, f"{point.measure} {fault}")
    if curves is None:
        remedy = (
            "; calibrate it for your camera: fedvisage calibrate"
            if exported and task == "pad"
            else ": it is a start or of an earlier version, or has fewer than three sites or federation.rates: "
            "threshold; train it again"
        )
        raise UserError(model, f"has no error rates of sites, so no operating points{remedy}")
    return threshold_at(curves, position_of(curves, point), point.text, task)


def position_of(curves: ErrorCurves, point: WishedPoint) -> int:
    """Return the position of an operating point on the curves.

    Rates that the held-out people do not support, or on which the sites disagree, are refused.
    """
    rejected = np.array(curves.rejected.rates)
    accepted = np.max([curve.rates for curve in curves.accepted.values()], axis=0)
    if point.measure == "eer":
        gaps = np.abs(np.array(curves.accepted[ALL].rates) - rejected)
        # Several thresholds may have the smallest gap: take the middle one.
        closest = np.flatnonzero(gaps <= gaps.min() + 1e-12)
        return int(closest[len(closest) // 2])
    asked = {"bona fide": curves.rejected} if point.measure == "bpcer" else curves.accepted
    for name, curve in asked.items():
        if point.rate < curve.least_rate * (1 - 1e-9):
            raise UserError(PLACE, _unsupported(name, curve, point))
    # With a rising threshold, more bona fide faces are rejected and fewer attacks accepted.
    if point.measure == "bpcer":
        position = int(np.flatnonzero(rejected <= point.rate * (1 + 1e-9))[-1])
    else:
        position = int(np.flatnonzero(accepted <= point.rate * (1 + 1e-9))[0])
    for name, curve in asked.items():
        # Pooled counts have no differences between sites.
        difference = 0.0 if curve.differences is None else curve.differences[position]
        if difference > _coarse(point.rate):
            of = f"{point.measure.upper()}{'' if name in (ALL, 'bona fide') else f' {name}'}"
            raise UserError(
                PLACE,
                f"{point.text} rests on sites that disagree: at its threshold, their {of} differs by "
                f"more than the wish, beyond chance; calibrate to your camera, or leave {PLACE} out",
            )
    return position


def _unsupported(name: str, curve: ClassCurve, point: WishedPoint) -> str:
    need = math.ceil(SUPPORT / point.rate - 1e-9)
    people = {"fmr": "pairs of people"}.get(point.measure, "people")
    of = "" if name == ALL else f" ({name})"
    least = f"{100 * _rounded_up(np.array([curve.least_rate]))[0]:.4g}%" if curve.people >= SUPPORT else ""
    remedy = f"ask for {point.measure}={least} or more, or hold out more people" if least else "hold out more people"
    return f"{point.text} needs {need:,} held-out {people}{of}, and the sites held out {curve.people:,}; {remedy}"


def threshold_at(curves: ErrorCurves, position: int, rule: str, task: Task) -> Threshold:
    """Return the threshold at a position of the curves, with all error rates there."""
    names = ("BPCER", "APCER") if task == "pad" else ("FNMR", "FMR")
    estimates = {names[0]: curves.rejected.estimate(position)} | {
        names[1] if name == ALL else f"{names[1]} {name}": curve.estimate(position)
        for name, curve in curves.accepted.items()
    }
    far, frr = estimates[names[1]].rate, estimates[names[0]].rate
    return Threshold(curves.thresholds[position], rule, far, frr, estimates)


def largest_rates(curves: ErrorCurves | None, threshold: float) -> dict[str, float]:
    """Return upper bounds of BPCER and APCER at any threshold, from the points of the curves around it."""
    if curves is None:
        return {}
    below = max(0, int(np.searchsorted(curves.thresholds, threshold, side="right")) - 1)
    above = min(int(np.searchsorted(curves.thresholds, threshold)), len(curves.thresholds) - 1)
    # A higher threshold rejects more and accepts less.
    lower, upper = (threshold_at(curves, position, "", "pad").estimates for position in (below, above))
    return {name: (upper if name == "BPCER" else lower)[name].rate for name in lower}


def read_curves(values: Any) -> ErrorCurves | None:
    """Read curves from a file; ValueError describes a fault."""
    return None if values is None else ErrorCurves.model_validate(values)
