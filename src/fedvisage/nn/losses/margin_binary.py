"""FedFR's margin-based binary cross-entropy (Eq. 6): one branch per identity separates it from all others.

It comes from Wen et al., "SphereFace2: Binary Classification is All You Need for Deep Face Recognition", ICLR 2022.

The paper prints g(z) = 2((z+1)^t/2) − 1. This module uses 2((z+1)/2)^t − 1, as in its released code and in SphereFace2,
which maps [−1, 1] onto itself.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedvisage.nn.losses.cosines import cosines


def stretch_cosine(cosine: Tensor, exponent: float) -> Tensor:
    """Return g(z) = 2((z+1)/2)^t − 1, which spreads the cosines that occur over more of [−1, 1]."""
    return 2 * ((cosine + 1) / 2).clamp(min=0).pow(exponent) - 1


def margin_binary(
    features: Tensor,
    centres: Tensor,
    bias: Tensor,
    labels: Tensor,
    *,
    scale: float = 30.0,
    margin: float = 0.4,
    balance: float = 0.7,
    exponent: float = 3.0,
) -> Tensor:
    """Return Eq. 6, summed over branches and averaged over the batch; `bias` has one number per branch, or one for all.

    An image whose label is no branch, such as −1, is a negative for all branches. The equation's names are s', m', λ
    and t; the defaults are FedFR's.
    """
    score = stretch_cosine(cosines(features, centres), exponent)
    is_own = labels[:, None] == torch.arange(len(centres), device=labels.device)
    positive = balance * softplus(-scale * (score - margin) - bias)
    negative = (1 - balance) * softplus(scale * (score + margin) + bias)
    return torch.where(is_own, positive, negative).sum(dim=1).mean() / scale
