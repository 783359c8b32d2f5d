"""FedGPAD's losses in addition to cross-entropy: depth (Eq. 5), reconstruction (Eq. 6) and difference (Eq. 7).

``printed`` sums over the batch. ``mean`` takes means, which makes weights comparable between image sizes; in this form
Eq. 7 uses features of unit length. Both read Eq. 7 as a matrix over the batch; the paper has one scalar per image.
"""

from typing import Literal

from torch import Tensor
from torch.nn.functional import mse_loss

Form = Literal["mean", "printed"]


def squared_error(output: Tensor, target: Tensor, form: Form) -> Tensor:
    """Return Eq. 5 and Eq. 6: the squared L2 distance, summed over the batch, or the mean over all elements."""
    return mse_loss(output, target, reduction="sum" if form == "printed" else "mean")


def difference(invariant: Tensor, specific: Tensor, form: Form) -> Tensor:
    """Return Eq. 7: the squared Frobenius norm of Z_Iᵀ Z_S over the batch, a soft subspace orthogonality constraint.

    In the ``mean`` form each feature vector is first divided by its own length (without gradient through the length),
    and the squares are averaged.
    """
    if form == "printed":
        return (invariant.T @ specific).square().sum()
    return (_normalise(invariant).T @ _normalise(specific)).square().mean()


def _normalise(features: Tensor) -> Tensor:
    lengths: Tensor = features.detach().norm(dim=1, keepdim=True)
    return features / (lengths + 1e-6)
