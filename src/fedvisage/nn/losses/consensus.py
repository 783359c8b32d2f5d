"""PrivacyFace's consensus-aware recognition loss (Q. Meng et al., ICLR 2022, Eq. 5).

A softmax over the site's own classes, with the margin of CosFace or ArcFace, gets one additional negative per cluster
of the other sites: μ(p̂, f, ρ) = s·cos(max(θ − ρ, 0)), which is s for every feature inside the cluster.

Deviations from the paper: the mean over the batch replaces the sum, as in the margin losses. At the printed ρ = 1.3, μ
of a feature orthogonal to a cluster is 0.964 s, which leaves almost no softmax probability for the site's own people;
``lower_clusters``, ``separate_terms`` and ``exclude_enclosing`` are variants that the paper does not have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.nn.losses.cosines import cosines

OPPOSITE = -1 + 1e-6
"""Lower limit of cosines, because the gradient of an angle is infinite at θ = π."""


def cluster_logits(features: Tensor, clusters: Tensor, margin: float, scale: float) -> Tensor:
    """Return μ for each feature and cluster. A row of zeros is not a cluster and gets -inf, so it has no effect.

    μ is s (cos θ cos ρ + sin θ sin ρ) outside the cap. With cos θ clipped at cos ρ, it is s and constant inside.
    """
    outside = cosines(features, clusters).clamp(OPPOSITE, math.cos(margin))
    logits = scale * (outside * math.cos(margin) + (1 - outside.square()).sqrt() * math.sin(margin))
    return logits.masked_fill(~clusters.any(dim=1), -math.inf)


def consensus_aware(own: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Return Eq. 5: cross-entropy over the margin logits of own classes and the logits of the others' clusters."""
    return cross_entropy(torch.cat([own, others], dim=1), labels)


def lower_clusters(others: Tensor, margin: float, scale: float) -> Tensor:
    """Lower the clusters' logits by s(1 − cos ρ): at the edge of its cap a cluster competes like a class at angle ρ."""
    return others - scale * (1 - math.cos(margin))


def exclude_enclosing(others: Tensor, labels: Tensor, centres: Tensor, clusters: Tensor, margin: float) -> Tensor:
    """Exclude a cluster for images whose own class centre lies inside its cap."""
    inside = cosines(centres[labels].detach(), clusters) >= math.cos(margin)
    return others.masked_fill(inside, -math.inf)


def separate_terms(own: Tensor, labels: Tensor, others: Tensor, weight: float) -> Tensor:
    """Return the margin loss of the own classes, plus λ times that of the own class against clusters only."""
    own_logit = own.gather(1, labels[:, None])
    against_clusters = cross_entropy(torch.cat([own_logit, others], dim=1), torch.zeros_like(labels))
    return cross_entropy(own, labels) + weight * against_clusters
