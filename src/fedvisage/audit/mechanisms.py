"""The mechanisms of PrivacyFace on data sets that try their claims, and three that are broken on purpose.

The broken ones show that the audit can see: less noise than the claim needs, sums of vectors that nobody clipped, and
a release that is drawn anew each time a run is resumed. Algorithm 1 as printed is not broken on purpose; its claim
fails on two groups of equal size, because which of them is the densest depends on a single identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedvisage.audit.lower_bound import Release, Trial
from fedvisage.privacy.clustering import Clustering, densest, sanitised
from fedvisage.privacy.gaussian import Budget, noise
from fedvisage.privacy.private_clustering import Privately, private_charges, release, statistics

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
