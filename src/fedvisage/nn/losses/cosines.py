"""What the margin losses start from: cosines of features with class centres, of which only directions count."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

LEAST = 1e-12
"""The length that a centre counts as having at least, so that one of no length has cosine 0."""


def cosines(features: Tensor, centres: Tensor) -> Tensor:
    """Return batch × classes; a row of `centres` is a class (the papers write classes as columns).

    Products are divided by the centres' lengths, and not the centres: of a hundred thousand of them, each copy and its
    gradient would take as long as the products.
    """
    lengths: Tensor = torch.linalg.vector_norm(centres, dim=1).clamp_min(LEAST)
    return normalize(features) @ centres.T / lengths


def angle(cosine: Tensor) -> Tensor:
    """Return the angle of cosines, with a finite gradient at 0 and π, where arccos has none.

    A cosine closer to ±1 than a few roundings is moved there, and no gradient flows through it.
    """
    edge = 1 - 8 * torch.finfo(cosine.dtype).eps
    return torch.acos(cosine.clamp(-edge, edge))


def own(cosine: Tensor, labels: Tensor) -> Tensor:
    """Return each row's cosine with the centre of its own class, as a column."""
    return cosine.gather(1, labels[:, None])


def with_own(cosine: Tensor, labels: Tensor, value: Tensor) -> Tensor:
    """Put something else in the place of each row's cosine with its own class."""
    return cosine.scatter(1, labels[:, None], value)
