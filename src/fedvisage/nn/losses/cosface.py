"""CosFace: additive margin softmax (Wang et al., "CosFace: Large Margin Cosine Loss…", CVPR 2018, Eq. 4; FedFR Eq. 1).

FedFR's balanced loss (Eq. 3) is this loss with the public and the site's own centres stacked.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedvisage.nn.losses.cosines import cosines, own_cosines, replace_own


def cosface_logits(cosine: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Return s·(cos θ_y − m) for the own class and s·cos θ_j for the others."""
    return scale * replace_own(cosine, labels, own_cosines(cosine, labels) - margin)


def cosface(features: Tensor, centres: Tensor, labels: Tensor, *, scale: float = 30.0, margin: float = 0.4) -> Tensor:
    """Return the mean loss over the batch; the defaults are FedFR's."""
    return cross_entropy(cosface_logits(cosines(features, centres), labels, scale, margin), labels)
