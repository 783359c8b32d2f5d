"""Krum and multi-Krum: the uploads that lie closest to their neighbours.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NeurIPS 2017, §4. With n uploads of which f may be hostile, the score of an upload is the sum of its
squared distances to the n − f − 2 uploads closest to it. Krum takes the one with the lowest score, multi-Krum the mean
of the m lowest. It needs 2f + 2 < n.

Deviations from the paper: it compares gradients; here the updates of sites are compared, whose differences are those of
their uploads. Distances run over all floating-point tensors, BatchNorm statistics included. The multi-Krum of the paper
demands m ≤ n − f − 2, and so does this one. Of equal scores the first site in the order of names wins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvisage.federation.robust.norm_clip import Tensors, norm_of_update


def squared_distances(uploads: Sequence[Tensors]) -> Tensor:
    """Return ‖Vᵢ − Vⱼ‖² of all pairs."""
    distances = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for row, one in enumerate(uploads):
        for column, other in enumerate(uploads[:row]):
            distances[row, column] = distances[column, row] = norm_of_update(one, other) ** 2
    return distances


def scores(distances: Tensor, hostile: int) -> Tensor:
    """Return s(i), the sum over the n − f − 2 closest others."""
    count = len(distances)
    if count <= 2 * hostile + 2:
        raise ValueError(f"{count} uploads are too few to withstand {hostile} hostile ones")
    # The first of each sorted row is the distance to itself, which is 0.
    return distances.sort(dim=1).values[:, 1 : count - hostile - 1].sum(dim=1)


def chosen(uploads: Sequence[Tensors], hostile: int, select: int = 1) -> list[int]:
    """Return the positions of the uploads with the lowest scores, in rising order of position."""
    ranked = torch.sort(scores(squared_distances(uploads), hostile), stable=True).indices
    return sorted(ranked[:select].tolist())
