"""Clusters of class centres as PrivacyFace finds them: Algorithm 1, differentially private local clustering (DPLC).

Q. Meng, F. Zhou, H. Ren, T. Feng, G. Liu, Y. Lin, "Improving federated learning face recognition via privacy-agnostic
clusters", ICLR 2022. The densest cap around a class centre is found (lines 3 to 5), its mean gets Gaussian noise
(line 7), the class centres around the noise-free mean are set aside (line 8), and so on for Q queries.

What the paper claims of it, (Qε, Qδ)-differential privacy, does not hold end to end: which cap is the densest depends
on single records without any noise, and so does |S|, on which σ, the test against T and the number of clusters depend.
Its costs are therefore entered under the relation ``paper``. :mod:`fedvisage.privacy.private_clustering` is the
mechanism whose claim holds.

Deviations from the paper: among caps of equal size that of the lowest index is taken (the paper does not say).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.errors import UserError
from fedvisage.privacy.accountant import Charge
from fedvisage.privacy.caps import check_margin, claimed_sensitivity
from fedvisage.privacy.draws import Draws
from fedvisage.privacy.gaussian import Budget, classic_standard_deviation, noise
from fedvisage.privacy.neighbours import counts_within, neighbour_counts

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
