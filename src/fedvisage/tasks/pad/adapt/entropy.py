"""The Shannon entropy of a binary prediction, which test-time adaptation minimises.

R. Shao, B. Zhang, P. C. Yuen, V. M. Patel, "Federated Test-Time Adaptive Face Presentation Attack Detection with
Dual-Phase Privacy Preservation", 2021, §III-B; after D. Wang et al., "Tent", 2021.
"""

from torch import Tensor
from torch.nn.functional import softplus


def entropy(logits: Tensor) -> Tensor:
    """Return -p log p - (1 - p) log(1 - p) with p the logit's sigmoid, as a mean over the batch, in nats."""
    return (softplus(logits) - logits * logits.sigmoid()).mean()
