"""FedGPAD's losses in addition to cross-entropy: depth (Eq. 5), reconstruction (Eq. 6) and difference (Eq. 7).

``printed`` sums over the batch. ``mean`` takes means, which makes weights comparable between image sizes; in this form
Eq. 7 uses features of unit length. The paper prints Eq. 7 as a sum over images of the squared product of their two
features; the authors' released code and the default here take the matrix of products over the batch.
"""

from typing import Literal

from torch import Tensor
from torch.nn.functional import mse_loss

Form = Literal["mean", "printed"]
Products = Literal["batch", "image"]
"""Eq. 7 over the batch, as in the released code, or one product per image, as printed."""


def squared_error(output: Tensor, target: Tensor, form: Form) -> Tensor:
    """Return Eq. 5 and Eq. 6: the squared L2 distance, summed over the batch, or the mean over all elements."""
    return mse_loss(output, target, reduction="sum" if form == "printed" else "mean")


def difference(invariant: Tensor, specific: Tensor, form: Form, products: Products = "batch") -> Tensor:
    """Return Eq. 7: the squared Frobenius norm of Z_Iᵀ Z_S, a soft orthogonality constraint, over the batch or images.

    In the ``mean`` form each feature vector is first divided by its own length (without gradient through the length),
    and the squares are averaged.
    """
    if form == "mean":
        invariant, specific = _normalise(invariant), _normalise(specific)
    squares = (invariant.T @ specific if products == "batch" else (invariant * specific).sum(dim=1)).square()
    return squares.sum() if form == "printed" else squares.mean()


def _normalise(features: Tensor) -> Tensor:
    lengths: Tensor = features.detach().norm(dim=1, keepdim=True)
    return features / (lengths + 1e-6)
