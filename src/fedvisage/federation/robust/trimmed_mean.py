"""The coordinate-wise trimmed mean.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, Definition 2. Of each coordinate the largest and the smallest values are left out, as many at each
end as sites may be hostile, and the rest is averaged.

Deviations from the paper: it trims gradients; here uploads are trimmed, which is the same up to what all were lent.
The number at each end is given as such and not as a share β of the sites.
"""

from __future__ import annotations

from torch import Tensor


def trimmed_mean(stacked: Tensor, cut: int) -> Tensor:
    """Return the mean over the first dimension without the ``cut`` largest and smallest values of each coordinate."""
    count = len(stacked)
    if count <= 2 * cut:
        raise ValueError(f"{count} values are too few to leave out {cut} at each end")
    return stacked.sort(dim=0).values[cut : count - cut].mean(dim=0)
