"""The spreadout regulariser and the positive loss of FedAwS, also used by FedFace.

F. X. Yu, A. S. Rawat, A. K. Menon, S. Kumar, "Federated Learning with Only Positive Labels", ICML 2020: a site with one
class can only pull its features towards that class's centre; the server, which has all centres, pushes them apart.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.nn.losses.cosines import cosines, own_cosines


def positive_hinge(features: Tensor, centres: Tensor, labels: Tensor, *, margin: float = 0.9) -> Tensor:
    """Return the mean of max(0, m − cos θ_y)², a loss without negatives."""
    return (margin - own_cosines(cosines(features, centres), labels)).clamp(min=0).square().mean()


def spreadout(centres: Tensor, owners: Tensor, *, margin: float) -> Tensor:
    """Return Σ max(0, v − d(w, w'))² over ordered pairs of centres of different owners; d is the cosine distance."""
    directions = normalize(centres)
    distance = 1 - directions @ directions.T
    different_owners = owners[:, None] != owners[None, :]
    return torch.where(different_owners, (margin - distance).clamp(min=0).square(), 0).sum()
