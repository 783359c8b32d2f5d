"""Cosines of features with class centres, the basis of the margin losses; only the directions of centres matter."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

LEAST = 1e-12
"""Lower limit of a centre's length, so that a zero centre has cosine 0."""


def cosines(features: Tensor, centres: Tensor) -> Tensor:
    """Return batch × classes; each row of `centres` is a class (the papers write classes as columns).

    The products are divided by the centres' lengths instead of normalising the centres: with a hundred thousand
    centres, each copy and its gradient would take as long as the products.
    """
    lengths: Tensor = torch.linalg.vector_norm(centres, dim=1).clamp_min(LEAST)
    return normalize(features) @ centres.T / lengths


def angle(cosine: Tensor) -> Tensor:
    """Return the angle of cosines, with a finite gradient at 0 and π, where arccos has none.

    A cosine within a few rounding errors of ±1 is clamped, and no gradient flows through it.
    """
    edge = 1 - 8 * torch.finfo(cosine.dtype).eps
    return torch.acos(cosine.clamp(-edge, edge))


def own_cosines(cosine: Tensor, labels: Tensor) -> Tensor:
    """Return each row's cosine with the centre of its own class, as a column."""
    return cosine.gather(1, labels[:, None])


def replace_own(cosine: Tensor, labels: Tensor, value: Tensor) -> Tensor:
    """Replace each row's cosine with its own class by another value."""
    return cosine.scatter(1, labels[:, None], value)
