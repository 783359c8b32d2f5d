"""The generic benchmark: verification and identification of people unseen in training (FedFR uses IJB-C for it).

1:1 counts all pairs of images of the set. 1:N enrols the mean of each person's `train` images, half of the people in
each of two galleries as in IJB, and searches both with the `test` images of all people. The ten folds use a fixed list
of pairs, as LFW does: people are distributed over the folds, and pairs are drawn within a fold from a random stream
that does not depend on the seed.

Sites send histograms of similarities, from which the verification threshold is chosen. The bins are those of
:mod:`fedvisage.metrics.threshold`: a similarity s from −1 to 1 falls into the bin of the score 20·s. Row 0 holds
impostor pairs and row 1 genuine pairs; the counts above an edge are exactly the similarities ≥ that edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.streams import numpy_rng
from fedvisage.metrics.identification import FPIRS, Mode, enrol_means, identify
from fedvisage.metrics.similarity import Faces, blocks, measurable_rates, pair_similarity, upper_blocks
from fedvisage.metrics.threshold import BINS, EDGES, LIMIT, Histogram, Threshold
from fedvisage.metrics.verification import (
    FARS,
    FoldAccuracies,
    Verification,
    accuracy_on_folds,
    genuine_pairs,
    verify_within,
)

# Thresholds from histograms of similarities.


RateAt = dict[float, float]
SIMILARITIES: NDArray[np.float64] = EDGES / LIMIT


def count_similarities(similarity: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count similarities in the bins; rounding errors beyond ±1 fall into the end bins."""
    index = np.floor((similarity.ravel().astype(np.float64) + 1) * (BINS // 2)).astype(np.int64)
    return np.bincount(np.clip(index, 0, BINS - 1), minlength=BINS).astype(np.int64)


def pair_counts(local: Faces, strangers: Faces) -> Histogram:
    """Count all pairs of a local face and a stranger's, and all pairs of faces of one local identity."""
    impostor = np.zeros(BINS, np.int64)
    for block in blocks(local.features, strangers.features):
        impostor += count_similarities(block.similarity)
    return np.stack([impostor, count_similarities(genuine_pairs(local))])


def within_counts(faces: Faces) -> Histogram:
    """Count all pairs of faces of two identities, and all pairs of faces of one identity."""
    impostor = np.zeros(BINS, np.int64)
    for block, is_impostor in upper_blocks(faces):
        impostor += count_similarities(block[is_impostor])
    return np.stack([impostor, count_similarities(genuine_pairs(faces))])


def tar_by_impostors(whole: Histogram, groups: Sequence[Histogram], fars: Sequence[float]) -> dict[str, RateAt]:
    """Return TAR at error rates among impostors within a group, and among impostors across groups.

    All genuine pairs count in both. ``whole`` counts the pairs of all faces, ``groups`` those within each group. Error
    rates below one pair are omitted. The thresholds are bin edges, so the actual rate never exceeds the requested one.
    """
    within = np.sum([counts[0] for counts in groups], axis=0)
    kinds = {"within": within, "across": whole[0] - within}
    rates: dict[str, RateAt] = {}
    for kind, impostors in kinds.items():
        thresholds = {far: threshold_at_fmr([np.stack([impostors, whole[1]])], far) for far in fars}
        missed = {far: chosen.frr for far, chosen in thresholds.items() if chosen is not None}
        rates[kind] = {far: 1 - frr for far, frr in missed.items() if frr is not None}
    return rates


def threshold_at_fmr(histograms: Sequence[Histogram], fmr: float) -> Threshold | None:
    """Return the lowest edge that at most a share `fmr` of all impostor pairs reach; None if there are too few."""
    impostor, genuine = (np.sum([counts[row] for counts in histograms], axis=0) for row in (0, 1))
    total = int(impostor.sum())
    if total == 0 or fmr * total < 1 - 1e-9:
        return None
    share = np.concatenate([np.cumsum(impostor[::-1])[::-1], [0]]) / total
    edge = int(np.argmax(share <= fmr))
    missed = float(genuine[:edge].sum() / genuine.sum()) if genuine.sum() else None
    return Threshold(float(SIMILARITIES[edge]), f"source-fmr {fmr:g}", float(share[edge]), missed)


FOLDS = 10
Pairs = NDArray[np.int64]  # P×2, positions of the two images


@dataclass(frozen=True, eq=False)
class FixedPairs:
    """A list of pairs in fold order, with same-person flags, similarities and the accuracy on the folds."""

    pairs: Pairs
    same: NDArray[np.bool_]
    similarity: NDArray[np.float32]
    folds: FoldAccuracies | None


def verification(faces: Faces, fars: Sequence[float]) -> Verification | None:
    """Return TAR@FAR over all pairs, by default at all measurable rates; None without pairs to measure."""
    genuine = len(genuine_pairs(faces))
    impostors = len(faces) * (len(faces) - 1) // 2 - genuine
    rates = fars or measurable_rates(FARS, impostors)
    return verify_within(faces, rates) if rates and genuine else None


def identification(faces: Faces, probe: NDArray[np.bool_], fpirs: Sequence[float], mode: Mode) -> dict[float, float]:
    """Return TPIR@FPIR as the mean over two galleries; empty unless two people have both enrolment and probe images."""
    names = np.unique(faces.identity)
    both = searchable_identities(faces, probe)
    if len(both) < 2:
        return {}
    probes = faces.take(probe & np.isin(faces.identity, both))
    searches = len(probes) if mode == "published" else len(probes) // 3
    rates, tpirs = fpirs or measurable_rates(FPIRS, searches), []
    if not rates:
        return {}
    for half in (names[::2], names[1::2]):
        gallery = enrol_means(faces.take(~probe & np.isin(faces.identity, np.intersect1d(half, both))))
        tpirs.append(identify([gallery], probes, rates, mode)[0].tpir)
    return {rate: float(np.mean([tpir[rate] for tpir in tpirs])) for rate in rates}


def searchable_identities(faces: Faces, probe: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the identities that have both enrolment and probe images; 1:N excludes all others."""
    return np.intersect1d(faces.identity[probe], faces.identity[~probe])


def on_fixed_pairs(faces: Faces, most: int) -> FixedPairs:
    """Return the accuracy on ten folds of fixed pairs; `folds` is None where there are too few people."""
    pairs = fixed_pairs(faces.identity, most)
    same = faces.identity[pairs[:, 0]] == faces.identity[pairs[:, 1]]
    similarity = pair_similarity(faces.features, pairs[:, 0], pairs[:, 1])
    folds = accuracy_on_folds(similarity, same, FOLDS) if len(pairs) else None
    return FixedPairs(pairs, same, similarity, folds)


def fixed_pairs(identity: NDArray[np.int64], most: int) -> Pairs:
    """Draw equally many genuine and impostor pairs in each of ten groups of people, at most `most` pairs in all."""
    rng = numpy_rng(0, "ten folds")
    names = rng.permutation(np.unique(identity))
    pairs_by_fold = [
        _pairs_of_fold(np.flatnonzero(np.isin(identity, fold)), identity, most, rng)
        for fold in np.array_split(names, FOLDS)
    ]
    size = min(min(len(genuine), len(impostor)) for genuine, impostor in pairs_by_fold)
    if not size:
        return np.empty((0, 2), np.int64)
    return np.concatenate([np.concatenate([genuine[:size], impostor[:size]]) for genuine, impostor in pairs_by_fold])


def _pairs_of_fold(
    images: Pairs, identity: NDArray[np.int64], most: int, rng: np.random.Generator
) -> tuple[Pairs, Pairs]:
    """Draw distinct pairs of images; large folds are subsampled so that all their pairs can be listed."""
    images = rng.permutation(images)[: max(60, 4 * most // FOLDS)][:2000]
    first, second = np.triu_indices(len(images), 1)
    pairs = np.stack([images[first], images[second]], axis=1)
    same = identity[pairs[:, 0]] == identity[pairs[:, 1]]
    limit = most // (2 * FOLDS)
    return rng.permutation(pairs[same])[:limit], rng.permutation(pairs[~same])[:limit]
