"""FedGPAD's losses beside cross-entropy: depth (Eq. 5), reconstruction (Eq. 6) and difference (Eq. 7).

``printed`` sums over the batch as the equations do. ``mean`` takes means, which is what makes weights comparable over
image sizes; there Eq. 7 works on features of unit length.
"""

from typing import Literal

from torch import Tensor
from torch.nn.functional import mse_loss

Form = Literal["mean", "printed"]


def squared_error(found: Tensor, wanted: Tensor, form: Form) -> Tensor:
    """Eq. 5 and Eq. 6: the squared L2 distance, summed over the batch, or the mean over all elements."""
    return mse_loss(found, wanted, reduction="sum" if form == "printed" else "mean")


def difference(invariant: Tensor, specific: Tensor, form: Form) -> Tensor:
    """Eq. 7: the squared Frobenius norm of Z_Iᵀ Z_S over the batch, a soft subspace orthogonality constraint.

    In the ``mean`` form each feature vector is first divided by its own length (through which no gradient flows), and
    the mean of the squares is taken.
    """
    if form == "printed":
        return (invariant.T @ specific).square().sum()
    return (_unit(invariant).T @ _unit(specific)).square().mean()


def _unit(features: Tensor) -> Tensor:
    lengths: Tensor = features.detach().norm(dim=1, keepdim=True)
    return features / (lengths + 1e-6)
