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

from fedvisage.errors import UserError
from fedvisage.privacy.accountant import Charge
from fedvisage.privacy.clustering import Clustering, check_centres, check_unit, directions
from fedvisage.privacy.draws import Draws
from fedvisage.privacy.gaussian import Budget, noise, standard_deviation
from fedvisage.privacy.neighbours import counts_within
from fedvisage.privacy.projection import lifted, projected


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

    With a ``basis`` of public directions it works on what they span (:mod:`fedvisage.privacy.projection`).
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
