"""FedFR's margin-based binary cross-entropy (Eq. 6): one branch an identity, which only tells its own from all others.

It comes from Wen et al., "SphereFace2: Binary Classification is All You Need for Deep Face Recognition", ICLR 2022.

The paper prints g(z) = 2((z+1)^t/2) − 1; taken is 2((z+1)/2)^t − 1, its released code's and SphereFace2's, which maps
[−1, 1] onto itself.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedvisage.nn.losses.cosines import cosines

NOBODY = -1
"""The label of an image that is of none of the branches' identities: a negative for all of them."""


def stretched(cosine: Tensor, exponent: float) -> Tensor:
    """g(z) = 2((z+1)/2)^t − 1: spreads the cosines that occur over more of [−1, 1]."""
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
    """Return Eq. 6, summed over branches, mean over the batch; `bias` is one number per branch, or a single one.

    The equation's names are s', m', λ and t; the defaults are FedFR's.
    """
    score = stretched(cosines(features, centres), exponent)
    mine = labels[:, None] == torch.arange(len(centres), device=labels.device)
    wanted = balance * softplus(-scale * (score - margin) - bias)
    unwanted = (1 - balance) * softplus(scale * (score + margin) + bias)
    return torch.where(mine, wanted, unwanted).sum(dim=1).mean() / scale
