"""ArcFace: additive angular margin softmax (Deng et al., "ArcFace…", CVPR 2019, Eq. 3): cos(θ + m).

Beyond θ = π − m, where cos(θ + m) rises again, it is continued by cos θ − m·sin m, which keeps falling, as in the
authors' released code; ``continued=False`` uses the printed equation.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.nn.losses.cosines import angle, cosines, own_cosines, replace_own


def arcface_logits(cosine: Tensor, labels: Tensor, scale: float, margin: float, *, continued: bool = True) -> Tensor:
    """Return s·cos(θ_y + m) for the own class and s·cos θ_j for the others."""
    own_cosine = own_cosines(cosine, labels)
    harder = torch.cos(angle(own_cosine) + margin)
    if continued:
        harder = torch.where(own_cosine > math.cos(math.pi - margin), harder, own_cosine - margin * math.sin(margin))
    return scale * replace_own(cosine, labels, harder)


def arcface(
    features: Tensor,
    centres: Tensor,
    labels: Tensor,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
    continued: bool = True,
) -> Tensor:
    """Return the mean loss over the batch; the defaults are the paper's."""
    return cross_entropy(arcface_logits(cosines(features, centres), labels, scale, margin, continued=continued), labels)
