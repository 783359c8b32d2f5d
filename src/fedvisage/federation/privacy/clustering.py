"""Clusters of class centres: PrivacyFace's Algorithm 1 as printed, and a mechanism whose guarantee holds end to end.

The second one, :func:`release`, is the default here. Candidates are public directions that do not depend on the site's
data. For each of Q queries the exponential mechanism (F. McSherry and K. Talwar, "Mechanism design via differential
privacy", FOCS 2007) selects a candidate c by the number of class centres within ρ of it; Gaussian noise is added to (Σ
(w_i − c), κ|S|) as one vector, with each w_i − c clipped to r = 2 sin(ρ/2). Every output follows from these two: the
estimate c + sum / count, and the comparison of the noisy count with T. A message always has Q rows; a row of zeros
represents a cluster that was too small.

The guarantee protects one class centre, given the others: an identity's images also trained the network, and the
guarantee does not cover that. Neighbours differ by one class centre added or removed, or (``replace-one``) exchanged
for another.
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
    lift_rows,
    noise,
    project_rows,
    standard_deviation,
)

# Spherical caps in PrivacyFace (Q. Meng et al., ICLR 2022): unit vectors within an angle ρ, 0 < ρ ≤ π/2, of a centre.


def check_margin(margin: float) -> None:
    """Raise an error for a margin for which Theorem 1 and Lemma 2 do not hold."""
    if not 0 < margin <= math.pi / 2:
        raise UserError("margin", f"must be an angle above 0 and at most π/2 = 1.5708, got {margin}")


def occupancy(margin: float, dimension: int) -> float:
    """Return the share of the sphere's surface in a cap, ½ I_{sin²ρ}((d − 1)/2, ½) (Theorem 1)."""
    from scipy.special import betainc  # imported here because it takes half a second, in every training process

    check_margin(margin)
    return 0.5 * float(betainc((dimension - 1) / 2, 0.5, math.sin(margin) ** 2))


def crowding_warning(margin: float, dimension: int, clusters: int) -> str | None:
    """Return a warning if the clusters could fill the sphere and leave no room for other identities, or None."""
    share = occupancy(margin, dimension) * clusters
    if share < 1:
        return None
    return (
        f"{clusters} clusters of margin {margin} take up to {share:.3g} times the surface of the sphere in {dimension} "
        "dimensions; lower the margin or the number of queries"
    )


def claimed_sensitivity(margin: float, size: int) -> float:
    """Return the distance that replacing a member moves the mean of a cluster (Theorem 2)."""
    check_margin(margin)
    return 2 * math.sin(margin) / size


# Counts of unit vectors within an angle of each other.

BLOCK = 512
"""Rows and columns of a block: a megabyte in float32, which stays in the processor's cache until it is counted."""


def neighbour_counts(vectors: Tensor, cosine: float) -> Tensor:
    """Return for each vector the number of vectors, itself included, whose product with it is at least ``cosine``.

    It works in blocks, so that no n × n matrix is in memory. An angle of at most ρ is a product of at least cos ρ,
    which avoids arc cosines. Products are symmetric, so half of them give all counts.
    """
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
    """Return for each point the number of vectors whose product with it is at least ``cosine``."""
    counts = torch.zeros(len(points), dtype=torch.int64)
    for top in range(0, len(points), BLOCK):
        rows = slice(top, top + BLOCK)
        for left in range(0, len(vectors), BLOCK):
            counts[rows] += _near(points[rows], vectors[left : left + BLOCK], cosine).sum(1).long()
    return counts


def _near(rows: Tensor, columns: Tensor, cosine: float) -> Tensor:
    """Return 1 for products of at least ``cosine`` and 0 for others; sums of a block of them are exact in any float."""
    return (rows @ columns.T).ge_(cosine)


# Algorithm 1 of PrivacyFace as printed, differentially private local clustering (DPLC).

LENGTH_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ClusteringSettings:
    """Parameters: caps of an angle ``margin`` (ρ), at most ``queries`` (Q), each with ``minimum`` members (T).

    In Algorithm 1 ``budget`` is that of each query, as in the paper; in the private mechanism it is that of all queries
    of a round.
    """

    margin: float
    queries: int
    minimum: int
    budget: Budget

    def __post_init__(self) -> None:
        """Raise an error for parameters that neither mechanism supports."""
        check_margin(self.margin)
        for name, value in (("queries", self.queries), ("minimum", self.minimum)):
            if value < 1:
                raise UserError(name, f"must be at least 1, got {value}")

    @property
    def cosine(self) -> float:
        """Return the smallest product of two unit vectors within the margin."""
        return math.cos(self.margin)


@dataclass(frozen=True)
class Cluster:
    """The noise-free mean p of a cap's members, in float64, and |S|; private to the site."""

    mean: Tensor
    size: int


def check_centres(centres: Tensor, asked: ClusteringSettings) -> None:
    """Raise an error for class centres without a guarantee, and for a minimum above their number."""
    check_unit("class centres", centres)
    if asked.minimum > len(centres):
        raise UserError("minimum", f"{asked.minimum} is more than the {len(centres)} identities of this site; lower it")


def check_unit(place: str, vectors: Tensor) -> None:
    """Raise an error unless the vectors form a table of finite rows of length one."""
    if vectors.ndim != 2 or not len(vectors):
        raise UserError(place, f"must be a table with a row for each, got the shape {tuple(vectors.shape)}")
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    if not bool(lengths.isfinite().all()):  # a value that is not finite makes its row's length not finite
        raise UserError(place, "hold values that are not finite")
    worst = float(lengths[(lengths - 1).abs().argmax()])
    if abs(worst - 1) > LENGTH_TOLERANCE:
        raise UserError(place, f"must have length 1, one has {worst:.4g}; normalise them")


def densest_clusters(centres: Tensor, asked: ClusteringSettings) -> tuple[Cluster, ...]:
    """Return the noise-free clusters of Algorithm 1; no later query depends on their noise.

    Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via
    privacy-agnostic clusters", ICLR 2022. Each of Q queries finds the densest cap around a class centre (lines 3 to 5),
    adds Gaussian noise to its mean (line 7), and removes the class centres around the noise-free mean (line 8).

    The paper's claim of (Qε, Qδ)-differential privacy does not hold end to end. The densest cap depends on single
    records without noise, and so does |S|, which determines σ, the test against T and the number of clusters. Its costs
    are therefore recorded under the relation ``paper``. The claim of :func:`release` holds.

    Deviation from the paper: of caps of equal size the one with the lowest index is used (the paper leaves this open).
    """
    check_centres(centres, asked)
    remaining, counts = centres, neighbour_counts(centres, asked.cosine)
    clusters: list[Cluster] = []
    while len(remaining):
        centre = remaining[int(counts.numpy().argmax())]  # NumPy returns the first of several; torch promises no order
        members = remaining @ centre >= asked.cosine
        size = int(members.sum())
        if size < asked.minimum:
            break
        mean = members.to(remaining.dtype) @ remaining / size
        clusters.append(Cluster(mean.double(), size))
        if len(clusters) == asked.queries:
            break
        covered = remaining @ (mean / mean.norm()) >= asked.cosine
        remaining, covered_centres = remaining[~covered], remaining[covered]
        # Subtract the removed class centres from the counts, which is cheaper than counting again.
        counts = counts[~covered] - counts_within(remaining, covered_centres, asked.cosine)
    return tuple(clusters)


def paper_sigma(cluster: Cluster, asked: ClusteringSettings) -> float:
    """Return the standard deviation by Theorem 2 and the classic formula (line 7)."""
    return classic_standard_deviation(asked.budget, claimed_sensitivity(asked.margin, cluster.size))


def paper_charges(clusters: tuple[Cluster, ...], asked: ClusteringSettings, release: str) -> tuple[Charge, ...]:
    """Return the cost of releasing these clusters by the paper's count; it must be written before any draw."""
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


def sanitise_clusters(clusters: tuple[Cluster, ...], asked: ClusteringSettings, dimension: int, draws: Draws) -> Tensor:
    """Add noise to each mean and return the directions, one row per cluster, possibly none (lines 7 and 8)."""
    rows = [cluster.mean + noise((dimension,), paper_sigma(cluster, asked), draws) for cluster in clusters]
    return directions(torch.stack(rows) if rows else torch.empty(0, dimension, dtype=torch.float64))


def directions(rows: Tensor) -> Tensor:
    """Return rows of length one in float32, the type of the wire."""
    return torch.nn.functional.normalize(rows, dim=1).float()


@dataclass(frozen=True)
class BudgetSplit:
    """The division of a round's budget.

    ``selection`` is the share of ε for the choice of candidates; with a single candidate there is no choice and no
    cost. ``count`` is κ/r, the weight of the number of members relative to their sum.
    """

    relation: Literal["add-remove", "replace-one"] = "add-remove"
    selection: float = 0.2
    count: float = 0.5

    def __post_init__(self) -> None:
        """Raise an error for shares that leave one of the two mechanisms without budget."""
        if not 0 < self.selection < 1:
            raise UserError("selection", f"must be a share of ε between 0 and 1, got {self.selection}")
        if not (math.isfinite(self.count) and self.count > 0):
            raise UserError("count", f"must be a finite number above 0, got {self.count}")


@dataclass(frozen=True)
class NoisyCentres:
    """The output that may be sent: one direction or zeros per query, in float32, and the noisy numbers of members."""

    centres: Tensor
    counts: Tensor


def cap_radius(asked: ClusteringSettings) -> float:
    """Return r, the largest distance between the centre of a cap and a unit vector within the margin."""
    return 2 * math.sin(asked.margin / 2)


def sensitivity(asked: ClusteringSettings, how: BudgetSplit) -> float:
    """Return the largest distance that one class centre moves (Σ (w_i − c), κ|S|)."""
    single = cap_radius(asked) * math.hypot(1, how.count)
    return single if how.relation == "add-remove" else max(2 * cap_radius(asked), single)


def private_charges(asked: ClusteringSettings, how: BudgetSplit, candidates: int, release: str) -> tuple[Charge, ...]:
    """Return the cost of a round, which depends only on the settings; it must be written before any draw."""
    share = how.selection if candidates > 1 else 0.0  # a single candidate is no choice, and costs nothing
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
    centres: Tensor,
    candidates: Tensor,
    asked: ClusteringSettings,
    how: BudgetSplit,
    draws: Draws,
    basis: Tensor | None = None,
) -> NoisyCentres:
    """Run the private mechanism. Class centres in the cap of a selected candidate take no part in later queries.

    With a ``basis`` of public directions it works in their span (:mod:`fedvisage.federation.privacy.mechanisms`).
    """
    check_centres(centres, asked)
    check_unit("candidates", candidates)
    if basis is not None:
        projected_release = release(project_rows(centres, basis), project_rows(candidates, basis), asked, how, draws)
        return NoisyCentres(lift_rows(projected_release.centres, basis), projected_release.counts)
    if asked.queries > len(candidates):
        raise UserError("queries", f"{asked.queries} is more than the {len(candidates)} public candidates; lower it")
    share = how.selection if len(candidates) > 1 else 0.0
    candidates = candidates.to(centres.dtype)
    remaining, counts = centres, counts_within(candidates, centres, asked.cosine)
    available = torch.ones(len(candidates), dtype=torch.bool)
    rows, numbers = [], []
    # Each query selects an unused candidate, estimates its cluster with noise, and removes the cluster's members.
    for _ in range(asked.queries):
        scores = counts.double() * score_weight(asked, how, share)
        chosen = draw_exponential(scores.masked_fill(~available, -math.inf), draws) if share else 0
        available[chosen] = False
        members = remaining @ candidates[chosen] >= asked.cosine
        noisy = statistics(remaining[members], candidates[chosen], asked, how)
        noisy = noisy + noise(tuple(noisy.shape), _sigma(asked, how, share), draws)
        number = float(noisy[-1]) / (how.count * cap_radius(asked))
        # A noisy mean of the members, or zeros if their noisy number is below the minimum.
        is_enough = number >= asked.minimum
        rows.append(candidates[chosen].double() + noisy[:-1] / number if is_enough else torch.zeros_like(noisy[:-1]))
        numbers.append(number)
        counts = counts - counts_within(candidates, remaining[members], asked.cosine)
        remaining = remaining[~members]
    return NoisyCentres(directions(torch.stack(rows)), torch.tensor(numbers, dtype=torch.float64))


def score_weight(asked: ClusteringSettings, how: BudgetSplit, share: float) -> float:
    """Return the weight of one member in a candidate's score in one selection.

    Adding an identity raises every count by 0 or 1, so weights e^{ε u} give ε. Exchanging an identity can raise one
    count and lower another, which needs e^{ε u / 2}.
    """
    epsilon = asked.budget.epsilon * share / asked.queries
    return epsilon if how.relation == "add-remove" else epsilon / 2


def draw_exponential(scores: Tensor, draws: Draws) -> int:
    """Draw an index with a probability proportional to e^score: the largest score after adding Gumbel noise."""
    return int((scores - torch.log(-torch.log(draws.uniform(len(scores))))).argmax())


def statistics(members: Tensor, centre: Tensor, asked: ClusteringSettings, how: BudgetSplit) -> Tensor:
    """Return (Σ (w_i − c), κ|S|) with clipped differences, the vector that receives the noise."""
    differences = (members - centre).double()
    lengths = torch.linalg.vector_norm(differences, dim=1, keepdim=True)
    clipped = differences * (cap_radius(asked) / lengths.clamp(min=1e-12)).clamp(max=1.0)
    count = torch.tensor([len(members) * how.count * cap_radius(asked)], dtype=torch.float64)
    return torch.cat([clipped.sum(dim=0), count])


def _sigma(asked: ClusteringSettings, how: BudgetSplit, share: float) -> float:
    """Return the noise of each of Q releases that together cost the rest of ε: √Q times that of one release."""
    budget = Budget(asked.budget.epsilon * (1 - share), asked.budget.delta)
    return standard_deviation(budget, sensitivity(asked, how)) * math.sqrt(asked.queries)
