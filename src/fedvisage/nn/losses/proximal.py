"""FedProx's proximal term (Eq. 2): the distance of a site's weights from those that the server lent."""

from collections.abc import Iterable

import torch
from torch import Tensor


def proximal(weights: Iterable[Tensor], lent: Iterable[Tensor]) -> Tensor:
    """Return ½‖w − wᵗ‖² over all tensors together."""
    squares = [(weight - reference).square().sum() for weight, reference in zip(weights, lent, strict=True)]
    return 0.5 * torch.stack(squares).sum()
