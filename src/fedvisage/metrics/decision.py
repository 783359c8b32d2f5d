"""One person or two? The threshold of a yes or no, from counts of similarities that sites send instead of similarities.

The bins are those of :mod:`fedvisage.metrics.threshold`: a similarity s from −1 to 1 stands at the place of the score
20·s. Row 0 has the impostor pairs, row 1 the genuine ones; counts above an edge are exactly the similarities ≥ that
edge.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Faces, blocks, upper_blocks
from fedvisage.metrics.threshold import BINS, EDGES, LIMIT, Histogram, Threshold
from fedvisage.metrics.verification import genuine_pairs

RateAt = dict[float, float]
SIMILARITIES: NDArray[np.float64] = EDGES / LIMIT


def counted(similarity: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count similarities in the bins; those a rounding beyond ±1 are in the end bins."""
    index = np.floor((similarity.ravel().astype(np.float64) + 1) * (BINS // 2)).astype(np.int64)
    return np.bincount(np.clip(index, 0, BINS - 1), minlength=BINS).astype(np.int64)


def pair_counts(local: Faces, strangers: Faces) -> Histogram:
    """Count all pairs of a local face and a stranger's, and all pairs of faces of one local identity."""
    impostor = np.zeros(BINS, np.int64)
    for block in blocks(local.features, strangers.features):
        impostor += counted(block.similarity)
    return np.stack([impostor, counted(genuine_pairs(local)[0])])


def within_counts(faces: Faces) -> Histogram:
    """Count all pairs of faces of two identities, and all pairs of faces of one."""
    impostor = np.zeros(BINS, np.int64)
    for block, other in upper_blocks(faces):
        impostor += counted(block[other])
    return np.stack([impostor, counted(genuine_pairs(faces)[0])])


def tar_by_impostors(whole: Histogram, groups: Sequence[Histogram], fars: Sequence[float]) -> dict[str, RateAt]:
    """Return TAR at error rates among impostors of one group, and of two: all genuine pairs count in both.

    ``whole`` counts the pairs of all faces, ``groups`` those within each group. An error rate of fewer than one pair
    is left out. The thresholds are edges of the bins, so a rate is never above what is asked for.
    """
    within = np.sum([counts[0] for counts in groups], axis=0)
    kinds = {"within groups": within, "across groups": whole[0] - within}
    return {kind: _tar(np.stack([impostors, whole[1]]), fars) for kind, impostors in kinds.items()}


def _tar(counts: Histogram, fars: Sequence[float]) -> RateAt:
    found = {far: threshold_at_fmr([counts], far) for far in fars}
    return {far: 1 - chosen.frr for far, chosen in found.items() if chosen is not None and chosen.frr is not None}


def threshold_at_fmr(histograms: Sequence[Histogram], fmr: float) -> Threshold | None:
    """Return the lowest edge that at most a share `fmr` of all impostor pairs reach; None if there are too few."""
    impostor, genuine = (np.sum([counts[row] for counts in histograms], axis=0) for row in (0, 1))
    total = int(impostor.sum())
    if total == 0 or fmr * total < 1 - 1e-9:
        return None
    share = np.concatenate([np.cumsum(impostor[::-1])[::-1], [0]]) / total
    at = int(np.argmax(share <= fmr))
    missed = float(genuine[:at].sum() / genuine.sum()) if genuine.sum() else None
    return Threshold(float(SIMILARITIES[at]), f"source-fmr {fmr:g}", float(share[at]), missed)
