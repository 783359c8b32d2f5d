"""Which public faces could be taken for one of a site's own: hard negatives (FedFR, "Hard Negative Sampling Strategy").

A public image is one if its similarity to any local image exceeds the threshold. Similarities are worked out a block
at a time and forgotten, so that memory does not grow with the product of the two sets.
"""

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Features, blocks


def hard_negatives(public: Features, local: Features, threshold: float) -> NDArray[np.int64]:
    """Return the positions of the hard ones among public features; both are at unit length."""
    hard = np.zeros(len(public), dtype=bool)
    for rows, _, similarity in blocks(public, local):
        hard[rows] |= similarity.max(axis=1) > threshold
    return np.flatnonzero(hard).astype(np.int64)
