"""Exact sign-flip test of paired differences, the interval that inverts it, and Holm's correction.

Under the null hypothesis each difference is symmetric about zero, so all 2ⁿ choices of signs are equally likely. A sum
with some signs flipped is at least the observed one if and only if the mean of the flipped differences is at most
zero. The p-value and the interval therefore follow from the means of all non-empty subsets (J. Hartigan, "Using
Subsample Values as Typical Values", 1969).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LEVEL = 0.05
POWER = 0.8
MOST = 24
"""Maximum number of differences whose subsets are listed (16 million)."""
CLOSE = 1e-6
"""A mean this close to zero counts as zero: records keep six decimals, so a difference may be off by as much."""


def subset_means(differences: Sequence[float]) -> NDArray[np.float64]:
    """Return the means of all non-empty subsets, in ascending order."""
    if len(differences) > MOST:
        raise ValueError(f"an exact test needs at most {MOST} differences, got {len(differences)}")
    sums, sizes = np.zeros(1), np.zeros(1)
    for difference in differences:
        sums, sizes = np.concatenate([sums, sums + difference]), np.concatenate([sizes, sizes + 1])
    return np.sort(sums[1:] / sizes[1:])


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value: the share of choices of signs whose sum is at least as far from zero."""
    means = subset_means(differences)
    tail = min((means <= CLOSE).sum(), (means >= -CLOSE).sum())
    return float(min(1.0, 2 * (1 + tail) / (len(means) + 1)))


def interval(differences: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Return the shifts that the test does not reject; infinite where no choice of signs reaches the level."""
    means = subset_means(differences)
    place = int(level / 2 * (len(means) + 1))
    return (-inf, inf) if place < 1 else (float(means[place - 1]), float(means[-place]))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's adjusted p-values."""
    adjusted, largest = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def detectable(differences: Sequence[float], comparisons: int = 1) -> float:
    """Return the mean difference that a t test at ``LEVEL / comparisons`` would find with 80 % power."""
    count = len(differences)
    quantiles = stdtrit(count - 1, 1 - LEVEL / comparisons / 2) + stdtrit(count - 1, POWER)
    return float(quantiles * np.std(differences, ddof=1) / sqrt(count))


def fewest() -> int:
    """Return the smallest number of differences with which the test can reach the level."""
    return next(count for count in range(1, MOST) if 2 / 2**count <= LEVEL)
