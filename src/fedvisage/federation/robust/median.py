"""The coordinate-wise median.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, Definition 1. With an even number of sites it is the mean of the two values in the middle.

Deviations from the paper: it takes the median of gradients; here it is that of uploads, which is the same up to what
all were lent.
"""

from __future__ import annotations

from torch import Tensor


def median(stacked: Tensor) -> Tensor:
    """Return the median over the first dimension, coordinate by coordinate."""
    ordered, count = stacked.sort(dim=0).values, len(stacked)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
