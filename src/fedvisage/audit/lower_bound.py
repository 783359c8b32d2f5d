"""What a mechanism's outputs betray: a lower bound on its ε, from releases on two data sets that are neighbours.

An observer of an (ε, δ)-private mechanism cannot tell two neighbouring data sets apart well by an output: for every set
of outputs, P[output of X] ≤ e^ε P[output of X'] + δ. Releases of both are drawn; on the first half the set is chosen
that tells them apart best, on the second it is counted. Exact binomial bounds (C. Clopper and E. Pearson, 1934) on
the two chances make ln((P − δ) / P') a lower bound that holds with the given confidence, whatever the mechanism is
(M. Jagielski, J. Ullman, A. Oprea, "Auditing differentially private machine learning", NeurIPS 2020).

A bound above the claim proves the claim wrong. One below proves nothing: another pair or set might tell more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedvisage.privacy.draws import Draws
from fedvisage.privacy.gaussian import Budget

CONFIDENCE = 0.999
Values = NDArray[np.float64]
Release = Callable[[Draws], Tensor]
"""A mechanism on one data set: from a source of noise to what leaves the site."""


@dataclass(frozen=True)
class Trial:
    """A claim, and the mechanism of which it is made on two data sets that are neighbours."""

    name: str
    claim: Budget
    one: Release
    other: Release
    releases: int = 1000
    """So many of each data set make a good try."""


@dataclass(frozen=True)
class Bound:
    """How often outputs of either data set fell into the chosen set, and the ε that follows."""

    epsilon: float
    claim: float
    hits: tuple[int, int]
    releases: int

    @property
    def exceeds(self) -> bool:
        """Whether the claim is proved wrong."""
        return self.epsilon > self.claim


def lower_bound(trial: Trial, releases: int, draws: Draws, confidence: float = CONFIDENCE) -> Bound:
    """Return a lower bound on ε from so many releases of each data set."""
    half = releases // 2
    outputs = [
        torch.stack([release(draws).double().flatten() for _ in range(2 * half)])
        for release in (trial.one, trial.other)
    ]
    towards = outputs[0][:half].mean(dim=0) - outputs[1][:half].mean(dim=0)
    one, other = ((values @ towards).numpy() for values in outputs)
    chosen = best_set(one[:half], other[:half], trial.claim.delta, confidence)
    hits = chosen.hits(one[half:], other[half:])
    return Bound(epsilon_of(hits[0], hits[1], half, trial.claim.delta, confidence), trial.claim.epsilon, hits, half)


@dataclass(frozen=True)
class Above:
    """The outputs whose number is at least a threshold, or those whose number is not; and whose are meant to be in."""

    threshold: float
    inside: bool
    swapped: bool

    def hits(self, one: Values, other: Values) -> tuple[int, int]:
        """Count the outputs in this set, those of the data set that is meant to be in first."""
        first, second = (other, one) if self.swapped else (one, other)
        counts = [int((values >= self.threshold).sum()) for values in (first, second)]
        if not self.inside:
            counts = [len(first) - counts[0], len(second) - counts[1]]
        return counts[0], counts[1]


def best_set(one: Values, other: Values, delta: float, confidence: float) -> Above:
    """Return the set that tells the two apart best."""
    thresholds = np.quantile(np.concatenate([one, other]), np.linspace(0.01, 0.99, 99))
    kinds = itertools.product(thresholds.tolist(), (True, False), (False, True))
    sets = [Above(threshold, inside, swapped) for threshold, inside, swapped in kinds]

    def epsilon(choice: Above) -> float:
        inside, others = choice.hits(one, other)
        return epsilon_of(inside, others, len(one), delta, confidence)

    return max(sets, key=epsilon)


def epsilon_of(hits: int, others: int, releases: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return ln((P − δ) / P') for the least P and the largest P' that such counts allow; at least 0."""
    tail = (1 - confidence) / 2  # either bound may fail
    least = float(stats.beta.ppf(tail, hits, releases - hits + 1)) if hits else 0.0
    most = float(stats.beta.ppf(1 - tail, others + 1, releases - others)) if others < releases else 1.0
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0
