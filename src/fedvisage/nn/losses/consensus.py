"""PrivacyFace's consensus-aware recognition loss (Q. Meng et al., ICLR 2022, Eq. 5).

A softmax over the site's own classes, with the margin of CosFace or ArcFace, gets one more negative for each cluster of
the other sites: μ(p̂, f, ρ) = s·cos(max(θ − ρ, 0)), which is s for every feature inside of the cluster.

Deviations from the paper: the mean over the batch instead of the sum, as the margin losses are used. At the printed
ρ = 1.3, μ of a feature that is orthogonal to a cluster is 0.964 s, which leaves nothing of the softmax to the site's
own people; ``lowered``, ``apart`` and ``outside`` are forms that the paper does not have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.nn.losses.cosines import cosines

OPPOSITE = -1 + 1e-6
"""θ = π, where the gradient of an angle is infinite, is kept at this distance of its cosine."""


def cluster_logits(features: Tensor, clusters: Tensor, margin: float, scale: float) -> Tensor:
    """Return μ for each feature and cluster. A row of zeros is no cluster, and gets -inf, which counts for nothing.

    It is s (cos θ cos ρ + sin θ sin ρ) outside of the cap; with cos θ clipped at cos ρ this is s, and flat, inside.
    """
    outside = cosines(features, clusters).clamp(OPPOSITE, math.cos(margin))
    logits = scale * (outside * math.cos(margin) + (1 - outside.square()).sqrt() * math.sin(margin))
    return logits.masked_fill(~clusters.any(dim=1), -math.inf)


def consensus_aware(own: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Eq. 5: cross-entropy over a margin loss's logits of the own classes beside those of the others' clusters."""
    return cross_entropy(torch.cat([own, others], dim=1), labels)


def lowered(others: Tensor, margin: float, scale: float) -> Tensor:
    """Lower clusters' logits by s(1 − cos ρ): at the edge of its cap a cluster competes like a class at the angle ρ."""
    return others - scale * (1 - math.cos(margin))


def outside(others: Tensor, labels: Tensor, centres: Tensor, clusters: Tensor, margin: float) -> Tensor:
    """Leave a cluster out for images whose own class centre lies inside of its cap."""
    inside = cosines(centres[labels].detach(), clusters) >= math.cos(margin)
    return others.masked_fill(inside, -math.inf)


def apart(own: Tensor, labels: Tensor, others: Tensor, weight: float) -> Tensor:
    """Two terms: the margin loss of the own classes, and λ times that of the own class beside clusters alone."""
    mine = own.gather(1, labels[:, None])
    beside = cross_entropy(torch.cat([mine, others], dim=1), torch.zeros_like(labels))
    return cross_entropy(own, labels) + weight * beside
