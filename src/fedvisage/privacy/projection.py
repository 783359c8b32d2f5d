"""Public principal directions, in which fewer coordinates need noise: an option of the private clustering.

Noise on a sum has the same size in every coordinate, so in 512 dimensions it is √8 times as long as in 64. Class
centres are therefore expressed in the leading principal directions of *public* features, under the lent model that
everybody has, and set to length one again; what is released is turned back into the whole space.

Why the account stays as it is: the directions do not depend on a site's data, and each class centre is mapped by
itself. So two sets that differ in one class centre still do afterwards, with vectors of length one, for which the
sensitivity holds. Turning back is work on what was released already, and costs nothing. What is lost is the part of a
cluster that the public directions do not span.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedvisage.errors import UserError

SHORTEST = 1e-6
"""Below this length a projection has no direction left, and the first public one stands for it."""


def principal_directions(features: Tensor, number: int) -> Tensor:
    """Return the leading directions of public features about the origin, one per row, orthonormal."""
    most = min(features.shape)
    if number > most:
        span = f"{len(features)} public images of {features.shape[1]} dimensions span {most} directions at most"
        raise UserError("recipe.method.project", f"is {number}, but {span}; lower it")
    _, _, directions = torch.linalg.svd(features.double(), full_matrices=False)
    leading: Tensor = directions[:number].to(features.dtype)
    return leading


def projected(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return vectors in the coordinates of a basis, each by itself set to length one."""
    coordinates = vectors @ basis.to(vectors.dtype).T
    lengths = torch.linalg.vector_norm(coordinates, dim=1, keepdim=True)
    first = torch.zeros_like(coordinates)
    first[:, 0] = 1
    return torch.where(lengths < SHORTEST, first, coordinates / lengths.clamp(min=SHORTEST))


def lifted(rows: Tensor, basis: Tensor) -> Tensor:
    """Return rows in such coordinates as vectors of the whole space; zeros stay zeros."""
    return rows @ basis.to(rows.dtype)
