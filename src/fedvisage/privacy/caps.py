"""Spherical caps in PrivacyFace (Q. Meng et al., ICLR 2022): how large they are, what its theorems say of a cluster.

A cluster is the part of the unit sphere within an angle ρ, 0 < ρ ≤ π/2, of its centre.
"""

from __future__ import annotations

import math

from fedvisage.errors import UserError


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
