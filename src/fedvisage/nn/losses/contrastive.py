"""The model-contrastive loss of MOON (Eq. 3), also used by FedFR (its Eq. 5)."""

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus


def model_contrastive(features: Tensor, wanted: Tensor, unwanted: Tensor, temperature: float) -> Tensor:
    """Pull features towards `wanted` and away from `unwanted`, other models' features of the same images.

    -log(exp(a/τ) / (exp(a/τ) + exp(b/τ))) with the cosine similarities a and b is log(1 + exp((b - a)/τ)). The result
    is the mean over the batch.
    """
    closer = cosine_similarity(features, wanted) - cosine_similarity(features, unwanted)
    return softplus(-closer / temperature).mean()
