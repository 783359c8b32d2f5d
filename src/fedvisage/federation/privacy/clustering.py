"""Clusters of class centres with a guarantee that holds end to end: the default of PrivacyFace here.

Candidates are public directions, the same whatever the site's data are. For each of Q queries the exponential mechanism
(F. McSherry and K. Talwar, "Mechanism design via differential privacy", FOCS 2007) picks a candidate c by the number of
class centres within ρ of it; Gaussian noise goes on (Σ (w_i − c), κ|S|) together, each w_i − c being clipped to
r = 2 sin(ρ/2). Everything that leaves is made of these two: the estimate c + sum / count, and whether the noisy count
reaches T. A message has Q rows always; a row of zeros stands for a cluster that was too small.

What is protected is one class centre, the others given: an identity's images also shaped the network, which this
does not cover. One class centre added or removed, or (``replace-one``) exchanged for another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedvisage.base.errors import UserError
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.privacy.mechanisms import (
    Budget,
    Draws,
    classic_standard_deviation,
    lifted,
    noise,
    projected,
    standard_deviation,
)

# Spherical caps in PrivacyFace (Q. Meng et al., ICLR 2022): how large they are, what its theorems say of a cluster.
#
# A cluster is the part of the unit sphere within an angle ρ, 0 < ρ ≤ π/2, of its centre.


def check_margin(margin: float) -> None:
    """Refuse a margin for which Theorem 1 and Lemma 2 do not hold."""
    if not 0 < margin <= math.pi / 2:
        raise UserError("margin", f"must be an angle above 0 and at most π/2 = 1.5708, got {margin}")


def occupancy(margin: float, dimension: int) -> float:
    """Theorem 1: the share of the sphere's surface that a cap takes, ½ I_{sin²ρ}((d − 1)/2, ½)."""
    from scipy.special import betainc  # half a second, which every process that trains would wait for

    check_margin(margin)
    return 0.5 * float(betainc((dimension - 1) / 2, 0.5, math.sin(margin) ** 2))


def crowding(margin: float, dimension: int, clusters: int) -> str | None:
    """Return a warning when so many clusters could fill the sphere, which leaves no room for other identities."""
    share = occupancy(margin, dimension) * clusters
    if share < 1:
        return None
    return (
        f"{clusters} clusters of margin {margin} take up to {share:.3g} times the surface of the sphere in {dimension} "
        "dimensions; lower the margin or the number of queries"
    )


def claimed_sensitivity(margin: float, size: int) -> float:
    """Theorem 2: how far the mean of a cluster moves when one of its members is replaced by another one."""
    check_margin(margin)
    return 2 * math.sin(margin) / size


def weak_sensitivity(margin: float, size: int) -> float:
    """Theorem 3: the same by way of the cluster's centre, a looser bound."""
    check_margin(margin)
    return 4 * math.sin(margin / 2) / size


def noise_within(radius: float, sigma: float, dimension: int) -> float:
    """Property 3: how likely noise is no longer than a radius: ‖v‖²/σ² is χ² with d degrees of freedom.

    The paper's d − 1 is a slip: the noise has d independent coordinates.
    """
    from scipy.special import gammainc

    return float(gammainc(dimension / 2, (radius / sigma) ** 2 / 2))


def least_cosine(length: float, noise_length: float) -> float:
    """Property 4: the least cosine between a mean of some length and the same with shorter noise added."""
    if noise_length > length:
        raise UserError("noise", f"of length {noise_length} is longer than the mean, {length}; nothing can be said")
    return math.sqrt(1 - (noise_length / length) ** 2)


# How many unit vectors lie within an angle of each other: in blocks, so that no n × n matrix is ever in memory.
#
# The angle between unit vectors is at most ρ where their product is at least cos ρ; this spares the arc cosines.
# Products
# are symmetric, so half of them tell the counts of both sides.


BLOCK = 512
"""Rows and columns of a block: in float32 a megabyte, which stays in a processor's cache until it is counted."""


def neighbour_counts(vectors: Tensor, cosine: float) -> Tensor:
    """Return for each vector how many of all vectors, itself included, have at least this product with it."""
    counts = torch.zeros(len(vectors), dtype=torch.int64)
    for top in range(0, len(vectors), BLOCK):
        rows = slice(top, top + BLOCK)
        counts[rows] += _near(vectors[rows], vectors[rows], cosine).sum(1).long()
        for left in range(top + BLOCK, len(vectors), BLOCK):
            columns = slice(left, left + BLOCK)
            near = _near(vectors[rows], vectors[columns], cosine)
            counts[rows] += near.sum(1).long()
            counts[columns] += near.sum(0).long()
    return counts


def counts_within(points: Tensor, vectors: Tensor, cosine: float) -> Tensor:
    """Return for each point how many of the vectors have at least this product with it."""
    counts = torch.zeros(len(points), dtype=torch.int64)
    for top in range(0, len(points), BLOCK):
        rows = slice(top, top + BLOCK)
        for left in range(0, len(vectors), BLOCK):
            counts[rows] += _near(points[rows], vectors[left : left + BLOCK], cosine).sum(1).long()
    return counts


def _near(rows: Tensor, columns: Tensor, cosine: float) -> Tensor:
    """Return ones and zeros in place of the products; sums of a block of them are exact in any float."""
    return (rows @ columns.T).ge_(cosine)


# Clusters of class centres as PrivacyFace finds them: Algorithm 1, differentially private local clustering (DPLC).
#
# Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-
# agnostic
# clusters", ICLR 2022. The densest cap around a class centre is found (lines 3 to 5), its mean gets Gaussian noise
# (line 7), the class centres around the noise-free mean are set aside (line 8), and so on for Q queries.
#
# What the paper claims of it, (Qε, Qδ)-differential privacy, does not hold end to end: which cap is the densest
# depends
# on single records without any noise, and so does |S|, on which σ, the test against T and the number of clusters
# depend.
# Its costs are therefore entered under the relation ``paper``. :mod:`fedvisage.federation.privacy.clustering` is the
# mechanism whose claim holds.
#
# Deviations from the paper: among caps of equal size that of the lowest index is taken (the paper does not say).


LENGTH_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Clustering:
    """What is asked for: caps of an angle ``margin`` (ρ), at most ``queries`` (Q), each of ``minimum`` members (T).

    ``budget``: of each query in Algorithm 1, as the paper has it; of all queries of a round in the private mechanism.
    """

    margin: float
    queries: int
    minimum: int
    budget: Budget

    def __post_init__(self) -> None:
        """Refuse what neither mechanism can do."""
        check_margin(self.margin)
        for name, value in (("queries", self.queries), ("minimum", self.minimum)):
            if value < 1:
                raise UserError(name, f"must be at least 1, got {value}")

    @property
    def cosine(self) -> float:
        """Return the least product of two unit vectors that are within the margin."""
        return math.cos(self.margin)


@dataclass(frozen=True)
class Cluster:
    """The noise-free mean p of a cap's members, in float64, and |S|: private to the site."""

    mean: Tensor
    size: int


def check_centres(centres: Tensor, asked: Clustering) -> None:
    """Refuse class centres for which no guarantee holds, and a size that no cluster of theirs can have."""
    check_unit("class centres", centres)
    if asked.minimum > len(centres):
        raise UserError("minimum", f"{asked.minimum} is more than the {len(centres)} identities of this site; lower it")


def check_unit(place: str, vectors: Tensor) -> None:
    """Refuse what is not a table of finite vectors of length one."""
    if vectors.ndim != 2 or not len(vectors):
        raise UserError(place, f"must be a table with a row for each, got the shape {tuple(vectors.shape)}")
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    if not bool(lengths.isfinite().all()):  # one value that is not finite makes its row's length so
        raise UserError(place, "hold values that are not finite")
    worst = float(lengths[(lengths - 1).abs().argmax()])
    if abs(worst - 1) > LENGTH_TOLERANCE:
        raise UserError(place, f"must have length 1, one has {worst:.4g}; normalise them")


def densest(centres: Tensor, asked: Clustering) -> tuple[Cluster, ...]:
    """Find the clusters of Algorithm 1 without their noise, which no later query depends on."""
    check_centres(centres, asked)
    left, counts = centres, neighbour_counts(centres, asked.cosine)
    clusters: list[Cluster] = []
    while len(left):
        around = left[int(counts.numpy().argmax())]  # the first of several: torch promises no order
        members = left @ around >= asked.cosine
        size = int(members.sum())
        if size < asked.minimum:
            break
        mean = members.to(left.dtype) @ left / size
        clusters.append(Cluster(mean.double(), size))
        if len(clusters) == asked.queries:
            break
        covered = left @ (mean / mean.norm()) >= asked.cosine
        left, gone = left[~covered], left[covered]
        counts = counts[~covered] - counts_within(left, gone, asked.cosine)
    return tuple(clusters)


def paper_sigma(cluster: Cluster, asked: Clustering) -> float:
    """Line 7: the standard deviation by Theorem 2 and the classic formula."""
    return classic_standard_deviation(asked.budget, claimed_sensitivity(asked.margin, cluster.size))


def paper_charges(clusters: tuple[Cluster, ...], asked: Clustering, release: str) -> tuple[Charge, ...]:
    """Return what the release of these clusters costs as the paper counts it, to be written down before the noise."""
    return tuple(
        Charge(
            release=f"{release}, cluster {number}",
            mechanism="gaussian",
            epsilon=asked.budget.epsilon,
            delta=asked.budget.delta,
            relation="paper",
            sensitivity=claimed_sensitivity(asked.margin, cluster.size),
            sigma=paper_sigma(cluster, asked),
        )
        for number, cluster in enumerate(clusters, start=1)
    )


def sanitised(clusters: tuple[Cluster, ...], asked: Clustering, dimension: int, draws: Draws) -> Tensor:
    """Lines 7 and 8: noise on each mean, then its direction: one row per cluster, possibly none."""
    rows = [cluster.mean + noise((dimension,), paper_sigma(cluster, asked), draws) for cluster in clusters]
    return directions(torch.stack(rows) if rows else torch.empty(0, dimension, dtype=torch.float64))


def directions(rows: Tensor) -> Tensor:
    """Return rows of length one, in the float32 in which they cross the wire."""
    return torch.nn.functional.normalize(rows, dim=1).float()


@dataclass(frozen=True)
class Privately:
    """How a round's budget is spent.

    ``selection``: the share of ε for the choice of candidates, nothing when there is no choice. ``count``: κ/r, how
    loudly the number of members is told beside their sum.
    """

    relation: Literal["add-remove", "replace-one"] = "add-remove"
    selection: float = 0.2
    count: float = 0.5

    def __post_init__(self) -> None:
        """Refuse shares that leave one of the two mechanisms without noise or without a voice."""
        if not 0 < self.selection < 1:
            raise UserError("selection", f"must be a share of ε between 0 and 1, got {self.selection}")
        if not (math.isfinite(self.count) and self.count > 0):
            raise UserError("count", f"must be a finite number above 0, got {self.count}")


@dataclass(frozen=True)
class Released:
    """What may be sent: a direction a query, or zeros, in float32; and the noisy numbers of members."""

    centres: Tensor
    counts: Tensor


def reach(asked: Clustering) -> float:
    """Return r, how far a unit vector within the margin can lie from the centre of its cap."""
    return 2 * math.sin(asked.margin / 2)


def sensitivity(asked: Clustering, how: Privately) -> float:
    """Return how far one class centre moves (Σ (w_i − c), κ|S|)."""
    one = reach(asked) * math.hypot(1, how.count)
    return one if how.relation == "add-remove" else max(2 * reach(asked), one)


def private_charges(asked: Clustering, how: Privately, candidates: int, release: str) -> tuple[Charge, ...]:
    """Return what a round costs, which depends on the settings only: to be written down before anything is drawn."""
    share = how.selection if candidates > 1 else 0.0
    sums = Charge(
        release=f"{release}, sums",
        mechanism="gaussian",
        epsilon=asked.budget.epsilon * (1 - share),
        delta=asked.budget.delta,
        relation=how.relation,
        sensitivity=sensitivity(asked, how),
        sigma=_sigma(asked, how, share),
        times=asked.queries,
    )
    if not share:
        return (sums,)
    chosen = Charge(
        release=f"{release}, selection",
        mechanism="selection",
        epsilon=asked.budget.epsilon * share,
        delta=0.0,
        relation=how.relation,
        sensitivity=1.0,
        sigma=0.0,
        times=asked.queries,
    )
    return (chosen, sums)


def release(
    centres: Tensor, candidates: Tensor, asked: Clustering, how: Privately, draws: Draws, basis: Tensor | None = None
) -> Released:
    """Run the mechanism. Class centres in the cap of a chosen candidate take no part in later queries.

    With a ``basis`` of public directions it works on what they span (:mod:`fedvisage.federation.privacy.mechanisms`).
    """
    check_centres(centres, asked)
    check_unit("candidates", candidates)
    if basis is not None:
        within = release(projected(centres, basis), projected(candidates, basis), asked, how, draws)
        return Released(lifted(within.centres, basis), within.counts)
    if asked.queries > len(candidates):
        raise UserError("queries", f"{asked.queries} is more than the {len(candidates)} public candidates; lower it")
    share = how.selection if len(candidates) > 1 else 0.0
    candidates = candidates.to(centres.dtype)
    left, counts = centres, counts_within(candidates, centres, asked.cosine)
    open_ = torch.ones(len(candidates), dtype=torch.bool)
    rows, numbers = [], []
    for _ in range(asked.queries):
        scores = counts.double() * score_weight(asked, how, share)
        chosen = exponential(scores.masked_fill(~open_, -math.inf), draws) if share else 0
        open_[chosen] = False
        members = left @ candidates[chosen] >= asked.cosine
        row, number = _estimate(left[members], candidates[chosen], asked, how, _sigma(asked, how, share), draws)
        rows.append(row)
        numbers.append(number)
        counts = counts - counts_within(candidates, left[members], asked.cosine)
        left = left[~members]
    return Released(directions(torch.stack(rows)), torch.tensor(numbers, dtype=torch.float64))


def score_weight(asked: Clustering, how: Privately, share: float) -> float:
    """Return what a member is worth to a candidate in one selection.

    Adding an identity raises every count by 0 or 1, so weights e^{ε u} give ε. Exchanging one can raise one count and
    lower another, which needs e^{ε u / 2}.
    """
    epsilon = asked.budget.epsilon * share / asked.queries
    return epsilon if how.relation == "add-remove" else epsilon / 2


def exponential(scores: Tensor, draws: Draws) -> int:
    """Draw an index with a probability in proportion to e^score: the largest score with Gumbel noise added."""
    return int((scores - torch.log(-torch.log(draws.uniform(len(scores))))).argmax())


def statistics(members: Tensor, centre: Tensor, asked: Clustering, how: Privately) -> Tensor:
    """Return (Σ (w_i − c), κ|S|), each difference being clipped: the vector on which noise goes."""
    differences = (members - centre).double()
    lengths = torch.linalg.vector_norm(differences, dim=1, keepdim=True)
    clipped = differences * (reach(asked) / lengths.clamp(min=1e-12)).clamp(max=1.0)
    count = torch.tensor([len(members) * how.count * reach(asked)], dtype=torch.float64)
    return torch.cat([clipped.sum(dim=0), count])


def _estimate(
    members: Tensor, centre: Tensor, asked: Clustering, how: Privately, sigma: float, draws: Draws
) -> tuple[Tensor, float]:
    """Return a noisy mean (zeros when the noisy count is below the minimum) and the noisy count."""
    told = statistics(members, centre, asked, how)
    told = told + noise(tuple(told.shape), sigma, draws)
    number = float(told[-1]) / (how.count * reach(asked))
    if number < asked.minimum:
        return torch.zeros(len(centre), dtype=torch.float64), number
    return centre.double() + told[:-1] / number, number


def _sigma(asked: Clustering, how: Privately, share: float) -> float:
    """Return the noise of each of Q releases that together cost what is left of ε: √Q times that of one release."""
    budget = Budget(asked.budget.epsilon * (1 - share), asked.budget.delta)
    return standard_deviation(budget, sensitivity(asked, how)) * math.sqrt(asked.queries)
