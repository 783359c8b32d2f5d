"""Can two protected templates be told to be one person's? The measure of Gomez-Barrero et al.

M. Gomez-Barrero, J. Galbally, C. Rathgeb, C. Busch, "General framework to evaluate unlinkability in biometric template
protection systems", IEEE Transactions on Information Forensics and Security 13 (2018), §IV: with the likelihood ratio
LR(s) of mated against non-mated similarities s of templates under two keys, and ω the ratio of their priors,
D(s) = 2 ω LR / (1 + ω LR) − 1 where ω LR > 1 and 0 elsewhere; D_sys is its mean over mated similarities. 0 tells
nothing, 1 tells everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError

BINS = 50


def local_unlinkability(
    mated: NDArray[np.floating], unmated: NDArray[np.floating], bins: int = BINS, prior_ratio: float = 1.0
) -> NDArray[np.float64]:
    """Return D(s) in bins of equal width over all similarities.

    Densities are histograms, so few scores make differences of chance look like links: give many more than bins.
    """
    first, second = _histograms(mated, unmated, bins)
    ratio = np.divide(first * prior_ratio, second, out=np.full(bins, np.inf), where=second > 0)
    share = np.where(np.isinf(ratio), 1.0, ratio / (1 + np.where(np.isinf(ratio), 1.0, ratio)))
    return np.where(ratio > 1, 2 * share - 1, 0.0)


def linkability(
    mated: NDArray[np.floating], unmated: NDArray[np.floating], bins: int = BINS, prior_ratio: float = 1.0
) -> float:
    """Return D_sys: 0 if templates of two keys tell nothing of being one person's, 1 if they tell it for sure."""
    first, _ = _histograms(mated, unmated, bins)
    return float(first @ local_unlinkability(mated, unmated, bins, prior_ratio))


def _histograms(
    mated: NDArray[np.floating], unmated: NDArray[np.floating], bins: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not len(mated) or not len(unmated):
        raise UserError("unlinkability", "needs similarities of one person's templates, and of two people's")
    ends = min(mated.min(), unmated.min()), max(mated.max(), unmated.max())
    edges = np.linspace(float(ends[0]), float(ends[1]) + 1e-9, bins + 1)
    first, second = (np.histogram(some, edges)[0] / len(some) for some in (mated, unmated))
    return first, second
