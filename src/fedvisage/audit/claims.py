"""Test the claimed ε: lower bounds for the run's mechanism, for Algorithm 1 as printed and for broken mechanisms.

An observer of an (ε, δ)-private mechanism cannot distinguish two neighbouring data sets well by an output: for every
set of outputs, P[output of X] ≤ e^ε P[output of X'] + δ. The audit draws releases of both data sets. On the first half
it chooses the set that separates them best; on the second half it counts the outputs in that set. Exact binomial bounds
(C. Clopper and E. Pearson, 1934) on the two probabilities make ln((P − δ) / P') a lower bound that holds with the given
confidence for any mechanism (M. Jagielski, J. Ullman, A. Oprea, "Auditing differentially private machine learning",
NeurIPS 2020).

A bound above the claim proves the claim wrong. A bound below it proves nothing: another pair or another set might show
a larger ε.

The broken mechanisms show that the audit detects faults: less noise than the claim needs, sums of unclipped vectors,
and a release that is drawn again each time a run resumes. Algorithm 1 as printed is not broken on purpose. Its claim
fails on two groups of equal size, because a single identity decides which of them is the densest.
"""

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

from fedvisage.audit.finding import Audit, AuditedRun, Finding
from fedvisage.base.streams import torch_rng
from fedvisage.federation.privacy.accountant import sampled_noise_multiplier
from fedvisage.federation.privacy.clustering import (
    BudgetSplit,
    ClusteringSettings,
    densest_clusters,
    private_charges,
    release,
    sanitise_clusters,
    statistics,
)
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, noise
from fedvisage.federation.protections.dpsgd import adds_noise, noisy_sum
from fedvisage.methods.recognition.privacyface import Options
from fedvisage.recipe.training import PersonPrivacy

CONFIDENCE = 0.999
Values = NDArray[np.float64]
Release = Callable[[Draws], Tensor]
"""A mechanism on one data set: a function from a source of noise to the values that leave the site."""


@dataclass(frozen=True)
class ClaimTrial:
    """A claim, and the mechanism that makes it, applied to two neighbouring data sets."""

    name: str
    claim: Budget
    first: Release
    other: Release
    releases: int = 1000
    """Number of releases per data set that makes a meaningful test."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε, and the number of outputs of each data set in the chosen set."""

    epsilon: float
    claim: float
    hits: tuple[int, int]
    releases: int

    @property
    def exceeds(self) -> bool:
        """Return True if the bound proves the claim wrong."""
        return self.epsilon > self.claim


def lower_bound(trial: ClaimTrial, releases: int, draws: Draws) -> Bound:
    """Return a lower bound on ε from this number of releases of each data set."""
    half = releases // 2
    outputs = [
        torch.stack([release(draws).double().flatten() for _ in range(2 * half)])
        for release in (trial.first, trial.other)
    ]
    direction = outputs[0][:half].mean(dim=0) - outputs[1][:half].mean(dim=0)
    # One number per output: its projection onto the difference of the two means.
    first, second = ((values @ direction).numpy() for values in outputs)
    thresholds = np.quantile(np.concatenate([first[:half], second[:half]]), np.linspace(0.01, 0.99, 99))
    variants = itertools.product(thresholds.tolist(), (True, False), (False, True))

    def epsilon(choice: OutputSet) -> float:
        inside, others_inside = choice.hits(first[:half], second[:half])
        return epsilon_of(inside, others_inside, half, trial.claim.delta)

    # The set of outputs that separates the first halves best; the second halves are then counted in it.
    chosen = max((OutputSet(*variant) for variant in variants), key=epsilon)
    hits = chosen.hits(first[half:], second[half:])
    return Bound(epsilon_of(hits[0], hits[1], half, trial.claim.delta), trial.claim.epsilon, hits, half)


@dataclass(frozen=True)
class OutputSet:
    """The outputs whose number is at least a threshold, or their complement, and the data set expected in it."""

    threshold: float
    inside: bool
    swapped: bool

    def hits(self, left: Values, right: Values) -> tuple[int, int]:
        """Count the outputs of each data set in this set; the data set that is expected in it comes first."""
        first, second = (right, left) if self.swapped else (left, right)
        counts = [int((values >= self.threshold).sum()) for values in (first, second)]
        if not self.inside:
            counts = [len(first) - counts[0], len(second) - counts[1]]
        return counts[0], counts[1]


def epsilon_of(hits: int, others: int, releases: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return ln((P − δ) / P') for the smallest P and the largest P' that these counts allow; at least 0."""
    tail = (1 - confidence) / 2  # half per bound, because either may fail
    least = float(stats.beta.ppf(tail, hits, releases - hits + 1)) if hits else 0.0
    most = float(stats.beta.ppf(1 - tail, others + 1, releases - others)) if others < releases else 1.0
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0


# The mechanisms of PrivacyFace on data sets that test their claims, and three mechanisms that are broken on purpose.
CLAIM = Budget(1.0, 1e-5)
MARGIN = 1.3
BUDGET_SPLIT = BudgetSplit()
RESUMED = 256
"""Number of times that the run of the last broken mechanism was killed and resumed."""


@dataclass(frozen=True)
class ClaimSettings:
    """The settings under test: a margin, a way to spend the budget, and the claimed cost of one release."""

    margin: float = MARGIN
    how: BudgetSplit = BUDGET_SPLIT
    claim: Budget = CLAIM

    @property
    def clustering(self) -> ClusteringSettings:
        """Return the parameters of one query that accepts groups of any size."""
        return ClusteringSettings(self.margin, queries=1, minimum=1, budget=self.claim)


def trials(claimed: ClaimSettings) -> Iterator[ClaimTrial]:
    """Yield the claims to test: Algorithm 1, the mechanism of a deployment on two pairs, and the broken ones."""
    yield ClaimTrial("Algorithm 1 as printed", CLAIM, paper_release(two_groups(0)), paper_release(two_groups(1)))
    first_larger, second_larger = (full_release(two_groups(extra), claimed) for extra in (0, 1))
    exchanged = claimed.claim
    if claimed.how.relation != "replace-one":  # replacing an identity is a removal plus an addition
        exchanged = Budget(2 * claimed.claim.epsilon, claimed.claim.delta * (1 + math.exp(claimed.claim.epsilon)))
    yield ClaimTrial("private, one of two groups is larger", exchanged, first_larger, second_larger, releases=200)
    # A small cap around e₁, and the cap with one more identity at its edge, where its effect is largest.
    angles = torch.tensor([0.3, -0.3, claimed.margin], dtype=torch.float64)
    extended = torch.stack([angles.cos(), angles.sin(), torch.zeros(3, dtype=torch.float64)], dim=1)
    base = extended[:2]
    yield ClaimTrial(
        "private, one identity more", claimed.claim, noisy_sums(base, claimed), noisy_sums(extended, claimed)
    )
    weak = replace(claimed, claim=Budget(20 * claimed.claim.epsilon, claimed.claim.delta))
    yield ClaimTrial(
        "broken: noise for an ε 20 times as large", claimed.claim, noisy_sums(base, weak), noisy_sums(extended, weak)
    )
    outlying = torch.cat([base, 40 * extended[-1:]])
    yield ClaimTrial(
        "broken: nothing is clipped",
        claimed.claim,
        unclipped_release(base, claimed),
        unclipped_release(outlying, claimed),
    )
    name = f"broken: drawn anew, resumed {RESUMED} times"
    yield ClaimTrial(name, claimed.claim, resumed_release(base, claimed), resumed_release(extended, claimed))


# DP-SGD per person, and two mistakes of its implementations.
STEPS = 4
"""Number of steps of which an observer sees the noisy sums."""


def trials_of_steps(settings: PersonPrivacy) -> Iterator[ClaimTrial]:
    """Yield the claims about a person whose gradient no other person has, at the clip and the rate of a run."""
    sigma = settings.clip * sampled_noise_multiplier(CLAIM.epsilon, CLAIM.delta, settings.rate, STEPS)
    others = torch.zeros(1, 2, dtype=torch.float64)
    more = torch.cat([others, torch.tensor([[40 * settings.clip, 0.0]], dtype=torch.float64)])
    unclipped = settings.model_copy(update={"clip": 1e9})
    everyone = settings.model_copy(update={"rate": 1.0})
    variants = {"steps, one person more": settings, "broken: nothing is clipped": unclipped}
    if settings.rate <= LARGEST_TESTED_RATE:
        variants["broken: everyone is drawn"] = everyone
    for name, variant in variants.items():
        yield ClaimTrial(name, CLAIM, noisy_steps(others, variant, sigma), noisy_steps(more, variant, sigma))


LARGEST_TESTED_RATE = 0.2
"""Above this rate, too few releases show that a step draws everyone."""


def noisy_steps(gradients: Tensor, settings: PersonPrivacy, sigma: float) -> Release:
    """Return the noisy sums of steps over people with these gradients, one per row."""

    def step(draws: Draws) -> Tensor:
        return noisy_sum([gradients[0]], len(gradients), lambda person: [gradients[person]], settings, sigma, draws)[0]

    return lambda draws: torch.stack([step(draws) for _ in range(STEPS)])


def two_groups(extra: int) -> Tensor:
    """Return 512 vectors at 0.2 rad around e₁, 512 around e₂, and one more in the group that ``extra`` names."""
    axes = torch.eye(512, dtype=torch.float64)
    aside = math.sin(0.2) * torch.cat([axes[2:258], -axes[2:258]])
    groups = [math.cos(0.2) * axes[number] + aside for number in (0, 1)]
    return torch.cat([*groups, groups[extra][:1]])


def paper_release(centres: Tensor) -> Release:
    """Return Algorithm 1 as a release, with the settings under which its claim fails."""
    query = ClusteringSettings(MARGIN, queries=1, minimum=512, budget=CLAIM)
    clusters = densest_clusters(centres, query)
    return lambda draws: sanitise_clusters(clusters, query, centres.shape[1], draws)


def full_release(centres: Tensor, claimed: ClaimSettings) -> Release:
    """Return the complete release of a site, with the axes of the groups as candidates."""
    candidates = torch.eye(centres.shape[1], dtype=centres.dtype)[:2]
    return lambda draws: release(centres, candidates, claimed.clustering, claimed.how, draws).centres


def noisy_sums(centres: Tensor, claimed: ClaimSettings) -> Release:
    """Return the noisy sums behind the release, which reveal at least as much as the released direction."""
    statistic, sigma = _clipped_statistic(centres, claimed), _sigma(claimed)
    return lambda draws: statistic + noise(tuple(statistic.shape), sigma, draws)


def unclipped_release(centres: Tensor, claimed: ClaimSettings) -> Release:
    """Return noisy sums to which one record may add any value."""
    statistic, sigma = centres.sum(dim=0), _sigma(claimed)
    return lambda draws: statistic + noise(tuple(statistic.shape), sigma, draws)


def resumed_release(centres: Tensor, claimed: ClaimSettings) -> Release:
    """Return the mean over the releases of a site that draws its noise again each time the run resumes."""
    statistic, sigma = _clipped_statistic(centres, claimed), _sigma(claimed)
    return lambda draws: (statistic + noise((RESUMED, len(statistic)), sigma, draws)).mean(dim=0)


def _clipped_statistic(centres: Tensor, claimed: ClaimSettings) -> Tensor:
    return statistics(centres, torch.eye(centres.shape[1], dtype=centres.dtype)[0], claimed.clustering, claimed.how)


def _sigma(claimed: ClaimSettings) -> float:
    return private_charges(claimed.clustering, claimed.how, candidates=1, release="")[0].sigma


def obstacle(subject: AuditedRun) -> str:
    """Report that the audit needs clusters or privacy of people, because only these claim an ε."""
    claims = isinstance(subject.recipe.method, Options) or adds_noise(subject.recipe)
    return "" if claims else "sites release no clusters, and training.privacy adds no noise"


def attack(subject: AuditedRun) -> Finding:
    """Test the run's settings at ε = 1, where a few hundred releases are enough to expose a broken mechanism."""
    people, rows = subject.recipe.training.privacy, list[dict[str, str | float]]()
    if people is None:
        options = subject.recipe.options(Options)
        claims = trials(ClaimSettings(options.rho, BudgetSplit(**options.private.model_dump()), CLAIM))
    else:
        claims = trials_of_steps(people)
    for trial in claims:
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
        "With 99.9 % confidence for each line, outputs on two neighbouring data sets show an ε of at least "
        f"the third column's. Refuted: {'; '.join(wrong) or 'none'}. A claim that was not refuted is not "
        "proven."
    )
    return Finding(says, {}, rows)


AUDIT = Audit("privacy-claim", "Statistical lower bound on ε, against the claimed value", obstacle, attack)
