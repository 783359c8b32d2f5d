"""A softmax over a sample of the classes, for many identities.

Partial FC (An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs by
Partial FC", CVPR 2022): all classes of a batch take part, and of the others as many as there is room for, drawn
uniformly. Any loss that takes features, centres and labels works on what is left, in time and memory that depend on
the sample and not on how many identities there are, if the sampled rows of the centres are a leaf of their own: the
gradient of an indexing is as large as what was indexed.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Sample(NamedTuple):
    """Which classes take part, ascending, and the batch's labels counted among them."""

    classes: Tensor
    labels: Tensor


def sample_classes(labels: Tensor, classes: int, wanted: int, rng: np.random.Generator) -> Sample:
    """Draw `wanted` classes with all of the batch's among them; more, if the batch alone has more."""
    present, position = torch.unique(labels, return_inverse=True)
    others = _absent(present.cpu().numpy(), classes, wanted - len(present), rng)
    chosen, order = torch.cat([present, torch.from_numpy(others).to(labels)]).sort()
    return Sample(chosen, torch.argsort(order)[position])


def _absent(present: np.ndarray, classes: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw so many classes that are not present; `present` is ascending.

    What is drawn are ranks: the absent class of rank k is k plus the number of present ones below it.
    """
    room = classes - len(present)
    ranks = rng.choice(room, size=max(0, min(count, room)), replace=False)
    return ranks + np.searchsorted(present - np.arange(len(present)), ranks, side="right")
