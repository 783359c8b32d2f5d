"""A threshold for one camera from genuine pictures of it.

The log-odds of one camera's genuine pictures are taken as normal. A further picture then lies below
``mean − t · s · √(1 + 1/n)`` with the wished probability, where t is Student's quantile at n − 1 degrees of freedom.
With few pictures this is lower, because s may be too small. This value has the weight n / (n + K). The model's own
threshold, usually the sites' equal-error threshold, has the rest. Without a wish, the share is MOST_REJECTED, and the
threshold is only lowered (docs/decisions/0052-calibration.md). Genuine pictures show nothing about attacks, so APCER
stays unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.operating_point import wilson
from fedvisage.metrics.scores import FloatArray
from fedvisage.metrics.threshold import Estimate

LEAST = 5
"""The smallest number of pictures."""

K = 2.0
"""The number of pictures that weigh as much as the model's threshold, chosen on real sites, each left out."""

MOST_REJECTED = 0.2
"""The share of genuine pictures above which the model's threshold is lowered, chosen on real sites."""

FAR = 4.0
"""An outlier lies this many robust standard deviations below the median; attacks among the pictures do."""

DRAWS = 4000
"""Drawn means and variances for an interval."""

LEAST_SPREAD = 0.25
"""The smallest robust standard deviation, in log-odds, for the search for outliers."""


@dataclass(frozen=True)
class CameraThreshold:
    """A threshold for one camera: its value, that of the pictures alone, and the weight of the pictures."""

    value: float
    of_pictures: float
    weight: float
    pictures: int


def threshold_for_camera(logits: FloatArray, own: float, bpcer: float | None) -> CameraThreshold:
    """Return the threshold at which about a share ``bpcer`` of a camera's genuine pictures is rejected.

    Without a share, it is the model's own threshold, unless that rejects more than about MOST_REJECTED of them.
    """
    count = len(logits)
    if count < LEAST:
        raise ValueError(f"needs at least {LEAST} pictures, got {count}")
    spread = float(np.std(logits, ddof=1)) * math.sqrt(1 + 1 / count)
    share = MOST_REJECTED if bpcer is None else bpcer
    of_pictures = float(np.mean(logits)) - student_quantile(1 - share, count - 1) * spread
    weight = 0.0 if bpcer is None and of_pictures >= own else count / (count + K)
    return CameraThreshold(weight * of_pictures + (1 - weight) * own, of_pictures, weight, count)


def expected_bpcer(logits: FloatArray, threshold: float) -> Estimate:
    """Return the BPCER to expect of the camera's further pictures at a threshold, with its 95 % interval.

    Log-odds are taken as normal. The rates are those of drawn means and variances that agree with the pictures: the
    variance is a scaled inverse χ², the mean normal around that of the pictures. A few pictures cannot show that scores
    are normal, so the interval is united with Wilson's for the share of the pictures below the threshold.
    """
    count, rng = len(logits), numpy_rng(0, "calibration")
    spread = max(float(np.std(logits, ddof=1)), 1e-9) * np.sqrt((count - 1) / rng.chisquare(count - 1, DRAWS))
    centre = float(np.mean(logits)) + spread * rng.standard_normal(DRAWS) / math.sqrt(count)
    rates = [NormalDist().cdf(distance) for distance in ((threshold - centre) / spread).tolist()]
    low, high = np.quantile(rates, [0.025, 0.975]).tolist()
    of_share = wilson(float(np.mean(logits < threshold)), count)
    return Estimate(float(np.mean(rates)), min(low, of_share[0]), max(high, of_share[1]))


def find_outliers(logits: FloatArray) -> NDArray[np.int64]:
    """Return the positions of pictures whose log-odds lie far below the others."""
    median = float(np.median(logits))
    spread = max(LEAST_SPREAD, 1.4826 * float(np.median(np.abs(logits - median))))
    return np.flatnonzero(logits < median - FAR * spread)


def student_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t for four degrees of freedom or more (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, 1)))
