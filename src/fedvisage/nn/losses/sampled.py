"""A softmax over a sample of the classes, for large numbers of identities.

Partial FC (An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs by
Partial FC", CVPR 2022): all classes of a batch participate, and others are drawn uniformly up to a fixed number. Any
loss of features, centres and labels works on the sample. Its time and memory depend on the sample and not on the number
of identities, provided that the sampled rows of the centres are a separate leaf tensor: the gradient of an indexing
operation is as large as the indexed tensor.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class ClassSample(NamedTuple):
    """The participating classes, ascending, and the batch's labels as positions among them."""

    classes: Tensor
    labels: Tensor


def sample_classes(labels: Tensor, classes: int, wanted: int, rng: np.random.Generator) -> ClassSample:
    """Draw `wanted` classes including all of the batch's; the result is larger if the batch alone has more."""
    present, position = torch.unique(labels, return_inverse=True)
    # The random numbers are ranks: the absent class of rank k is k plus the number of present classes below it.
    below, absent_count = present.cpu().numpy() - np.arange(len(present)), classes - len(present)
    ranks = rng.choice(absent_count, size=max(0, min(wanted - len(present), absent_count)), replace=False)
    additional = ranks + np.searchsorted(below, ranks, side="right")
    chosen, order = torch.cat([present, torch.from_numpy(additional).to(labels)]).sort()
    return ClassSample(chosen, torch.argsort(order)[position])
