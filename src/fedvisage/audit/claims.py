"""The claim of ε, tried: lower bounds for the run's mechanism, for Algorithm 1 as printed and for broken ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedvisage.audit.finding import Audit, Finding, Subject
from fedvisage.base.streams import torch_rng
from fedvisage.federation.privacy.clustering import (
    Clustering,
    Privately,
    densest,
    private_charges,
    release,
    sanitised,
    statistics,
)
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, noise
from fedvisage.methods.recognition.privacyface import Options

# What a mechanism's outputs betray: a lower bound on its ε, from releases on two data sets that are neighbours.
#
# An observer of an (ε, δ)-private mechanism cannot tell two neighbouring data sets apart well by an output: for
# every set
# of outputs, P[output of X] ≤ e^ε P[output of X'] + δ. Releases of both are drawn; on the first half the set is
# chosen
# that tells them apart best, on the second it is counted. Exact binomial bounds (C. Clopper and E. Pearson, 1934) on
# the two chances make ln((P − δ) / P') a lower bound that holds with the given confidence, whatever the mechanism is
# (M. Jagielski, J. Ullman, A. Oprea, "Auditing differentially private machine learning", NeurIPS 2020).
#
# A bound above the claim proves the claim wrong. One below proves nothing: another pair or set might tell more.


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


# The mechanisms of PrivacyFace on data sets that try their claims, and three that are broken on purpose.
#
# The broken ones show that the audit can see: less noise than the claim needs, sums of vectors that nobody clipped,
# and
# a release that is drawn anew each time a run is resumed. Algorithm 1 as printed is not broken on purpose; its claim
# fails on two groups of equal size, because which of them is the densest depends on a single identity.


CLAIM = Budget(1.0, 1e-5)
MARGIN = 1.3
PRIVATELY = Privately()
RESUMED = 256
"""So many times the run of the last broken mechanism was killed and went on."""


@dataclass(frozen=True)
class Claimed:
    """The settings whose claim is tried: a margin, a way to spend, and what one release is said to cost."""

    margin: float = MARGIN
    how: Privately = PRIVATELY
    claim: Budget = CLAIM

    @property
    def asked(self) -> Clustering:
        """Return what one query asks for, of groups of any size."""
        return Clustering(self.margin, queries=1, minimum=1, budget=self.claim)

    @property
    def exchanged(self) -> Budget:
        """Return the claim when an identity is exchanged for another: one removed and one added, unless it says so."""
        if self.how.relation == "replace-one":
            return self.claim
        return Budget(2 * self.claim.epsilon, self.claim.delta * (1 + math.exp(self.claim.epsilon)))


def trials(claimed: Claimed) -> Iterator[Trial]:
    """Return the claims to try: Algorithm 1, the mechanism of a deployment on two pairs, and the broken ones."""
    yield Trial("Algorithm 1 as printed", CLAIM, printed(two_groups(0)), printed(two_groups(1)))
    one, other = (released(two_groups(extra), claimed) for extra in (0, 1))
    yield Trial("private, one of two groups is larger", claimed.exchanged, one, other, releases=200)
    few, more = one_more(claimed)
    yield Trial("private, one identity more", claimed.claim, sums(few, claimed), sums(more, claimed))
    weak = replace(claimed, claim=Budget(20 * claimed.claim.epsilon, claimed.claim.delta))
    yield Trial("broken: noise for an ε 20 times as large", claimed.claim, sums(few, weak), sums(more, weak))
    wild = torch.cat([few, 40 * more[-1:]])
    yield Trial("broken: nothing is clipped", claimed.claim, unclipped(few, claimed), unclipped(wild, claimed))
    name = f"broken: drawn anew, resumed {RESUMED} times"
    yield Trial(name, claimed.claim, drawn_anew(few, claimed), drawn_anew(more, claimed))


def two_groups(extra: int) -> Tensor:
    """Return 512 vectors at 0.2 rad around e₁, 512 around e₂, and one more of the group that ``extra`` names."""
    axes = torch.eye(512, dtype=torch.float64)
    aside = math.sin(0.2) * torch.cat([axes[2:258], -axes[2:258]])
    groups = [math.cos(0.2) * axes[number] + aside for number in (0, 1)]
    return torch.cat([*groups, groups[extra][:1]])


def one_more(claimed: Claimed) -> tuple[Tensor, Tensor]:
    """Return a small cap around e₁ and the same with one identity more, at its edge, where it counts most."""
    angles = torch.tensor([0.3, -0.3, claimed.margin], dtype=torch.float64)
    members = torch.stack([angles.cos(), angles.sin(), torch.zeros(3, dtype=torch.float64)], dim=1)
    return members[:2], members


def printed(centres: Tensor) -> Release:
    """Algorithm 1 with the settings on which its claim fails."""
    asked = Clustering(MARGIN, queries=1, minimum=512, budget=CLAIM)
    clusters = densest(centres, asked)
    return lambda draws: sanitised(clusters, asked, centres.shape[1], draws)


def released(centres: Tensor, claimed: Claimed) -> Release:
    """All that leaves the site, with the axes of the groups as candidates."""
    candidates = torch.eye(centres.shape[1], dtype=centres.dtype)[:2]
    return lambda draws: release(centres, candidates, claimed.asked, claimed.how, draws).centres


def sums(centres: Tensor, claimed: Claimed) -> Release:
    """What the release is made of: it tells at least as much as the direction that leaves the site."""
    told, sigma = _told(centres, claimed), _sigma(claimed)
    return lambda draws: told + noise(tuple(told.shape), sigma, draws)


def unclipped(centres: Tensor, claimed: Claimed) -> Release:
    """Sums to which one record may add anything."""
    told, sigma = centres.sum(dim=0), _sigma(claimed)
    return lambda draws: told + noise(tuple(told.shape), sigma, draws)


def drawn_anew(centres: Tensor, claimed: Claimed) -> Release:
    """The mean of what a site tells that draws its release again each time it is resumed."""
    told, sigma = _told(centres, claimed), _sigma(claimed)
    return lambda draws: (told + noise((RESUMED, len(told)), sigma, draws)).mean(dim=0)


def _told(centres: Tensor, claimed: Claimed) -> Tensor:
    return statistics(centres, torch.eye(centres.shape[1], dtype=centres.dtype)[0], claimed.asked, claimed.how)


def _sigma(claimed: Claimed) -> float:
    return private_charges(claimed.asked, claimed.how, candidates=1, release="")[0].sigma


def obstacle(subject: Subject) -> str:
    """Only releases have an ε."""
    return "" if isinstance(subject.recipe.method, Options) else "sites release no clusters"


def attack(subject: Subject) -> Finding:
    """Try the run's settings at ε = 1, where some hundreds of releases can tell a broken mechanism from a sound one."""
    options = subject.recipe.options(Options)
    claimed = Claimed(options.rho, Privately(**options.private.model_dump()), CLAIM)
    rows: list[dict[str, str | float]] = []
    for trial in trials(claimed):
        draws = DerivedDraws(torch_rng(subject.recipe.runtime.seed, "audit", trial.name))
        bound = lower_bound(trial, trial.releases, draws)
        rows.append(
            {
                "mechanism": trial.name,
                "claimed ε": bound.claim,
                "shown ε, at least": bound.epsilon,
                "claim": "proved wrong" if bound.exceeds else "stands",
            }
        )
    wrong = [str(row["mechanism"]) for row in rows if row["claim"] == "proved wrong"]
    says = (
        "With 99.9 % confidence for each line, outputs on two neighbouring data sets show an ε of at least the third "
        f"column's. Proved wrong: {'; '.join(wrong) or 'none'}. A claim that stands is not thereby proved."
    )
    return Finding(says, {}, rows)


AUDIT = Audit("privacy-claim", "Whether the claimed ε can be refuted", obstacle, attack)
