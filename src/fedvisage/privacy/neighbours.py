"""How many unit vectors lie within an angle of each other: in blocks, so that no n × n matrix is ever in memory.

The angle between unit vectors is at most ρ where their product is at least cos ρ; this spares the arc cosines. Products
are symmetric, so half of them tell the counts of both sides.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
