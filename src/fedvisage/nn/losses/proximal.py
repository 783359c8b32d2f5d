"""FedProx's proximal term (Eq. 2): how far a site's weights have gone from the ones that the server lent."""

from collections.abc import Iterable

import torch
from torch import Tensor


def proximal(weights: Iterable[Tensor], lent: Iterable[Tensor]) -> Tensor:
    """Return ½‖w − wᵗ‖² over all tensors together."""
    squares = [(here - there).square().sum() for here, there in zip(weights, lent, strict=True)]
    return 0.5 * torch.stack(squares).sum()
