"""The model-contrastive loss of MOON (Eq. 3), which FedFR takes over (its Eq. 5)."""

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus


def model_contrastive(features: Tensor, wanted: Tensor, unwanted: Tensor, temperature: float) -> Tensor:
    """Pull each feature towards one model's feature of the same image and away from another's; mean over the batch.

    -log(exp(a/τ) / (exp(a/τ) + exp(b/τ))) with the cosine similarities a and b is log(1 + exp((b - a)/τ)).
    """
    closer = cosine_similarity(features, wanted) - cosine_similarity(features, unwanted)
    return softplus(-closer / temperature).mean()
