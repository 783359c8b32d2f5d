"""Verification rates (1:1): acceptance rates of face pairs, and accuracy on ten folds.

All functions use one decision rule: a pair is accepted if and only if its similarity is ≥ the threshold. TAR is the
share of genuine pairs accepted, FAR that of impostor pairs. TAR@FAR=x is taken at the lowest threshold whose FAR is at
most x, without interpolation; tied similarities are accepted or rejected together. Only the highest impostor
similarities are needed for this, so the others are not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.metrics.pad import largest_count
from fedvisage.metrics.similarity import (
    Faces,
    Features,
    HighestValues,
    blocks,
    check_disjoint,
    require_measurable,
    upper_blocks,
)

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
PLACE = "evaluation.far"


@dataclass(frozen=True)
class Verification:
    """TAR and threshold for each requested FAR, and the numbers of pairs."""

    tar: dict[float, float]
    threshold: dict[float, float]
    genuine: int
    impostors: int


@dataclass(frozen=True)
class FoldAccuracies:
    """Accuracy on each fold at the threshold that is best on the other folds."""

    accuracy: tuple[float, ...]
    threshold: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy over the folds."""
        return float(np.mean(self.accuracy))

    @property
    def std(self) -> float:
        """Standard deviation over the folds, divided by their number as in published figures."""
        return float(np.std(self.accuracy))


def needed_count(impostors: int, fars: Sequence[float]) -> int:
    """Return the number of highest impostor similarities that determine TAR at these FARs."""
    return min(largest_count(max(fars), impostors) + 1, impostors)


def tar_at_far(genuine: Features, highest: Features, impostors: int, fars: Sequence[float]) -> Verification:
    """Return TAR@FAR from all genuine similarities and the highest (`needed`) impostor similarities, descending."""
    if not len(genuine):
        raise UserError("verification", "no genuine pairs; at least one identity needs two images")
    if not impostors:
        raise UserError("verification", "no impostor pairs; add images of other identities")
    require_measurable(fars, impostors, PLACE, "impostor pairs")
    threshold = {far: just_above(highest, largest_count(far, impostors), impostors) for far in fars}
    tar = {far: float(np.mean(genuine >= threshold[far])) for far in fars}
    return Verification(tar, threshold, len(genuine), impostors)


def just_above(highest: Features, accepted: int, count: int) -> float:
    """Return the lowest threshold that at most `accepted` of `count` numbers reach; `highest` is descending."""
    if accepted >= count:
        return -np.inf
    return float(np.nextafter(highest[accepted], np.float32(np.inf), dtype=np.float32))


def verify_pairs(similarity: Features, same: NDArray[np.bool_], fars: Sequence[float] = FARS) -> Verification:
    """Return TAR@FAR of a list of pairs."""
    impostors = similarity[~same].astype(np.float32)
    highest = HighestValues(needed_count(len(impostors), fars))
    highest.add(impostors)
    return tar_at_far(similarity[same], highest.values(), len(impostors), fars)


def verify_against(local: Faces, others: Faces, fars: Sequence[float] = FARS) -> Verification:
    """Return TAR@FAR with genuine pairs within `local` and impostor pairs between `local` and `others`."""
    check_disjoint(local.identity.tolist(), others.identity.tolist(), "verification")
    impostors = len(local) * len(others)
    highest = HighestValues(needed_count(impostors, fars))
    for block in blocks(local.features, others.features):
        highest.add(block.similarity)
    return tar_at_far(genuine_pairs(local), highest.values(), impostors, fars)


def verify_within(faces: Faces, fars: Sequence[float] = FARS) -> Verification:
    """Return TAR@FAR over all pairs of faces: genuine pairs of one identity, impostor pairs of two."""
    genuine = genuine_pairs(faces)
    impostors = len(faces) * (len(faces) - 1) // 2 - len(genuine)
    require_measurable(fars, impostors, PLACE, "impostor pairs")
    highest = HighestValues(needed_count(impostors, fars))
    for similarity, is_impostor in upper_blocks(faces):
        highest.add(np.where(is_impostor, similarity, np.float32(-np.inf)))
    return tar_at_far(genuine, highest.values(), impostors, fars)


def genuine_pairs(faces: Faces) -> Features:
    """Return the similarities within each identity."""
    order = np.argsort(faces.identity, kind="stable")
    cuts = np.flatnonzero(np.diff(faces.identity[order])) + 1
    groups = [faces.features[index] for index in np.split(order, cuts) if len(index)]
    pairs = [(images @ images.T)[np.triu_indices(len(images), 1)] for images in groups]
    return np.concatenate([np.empty(0, np.float32), *pairs])


def accuracy_on_folds(similarity: Features, same: NDArray[np.bool_], folds: int = 10) -> FoldAccuracies:
    """Return the LFW-style accuracy, with consecutive folds in list order.

    Each fold is evaluated at the threshold that is best on the other folds.
    """
    if len(same) < folds:
        raise UserError("verification", f"{len(same)} pairs are too few for {folds} folds; add pairs")
    sizes = [len(fold) for fold in np.array_split(np.arange(len(same)), folds)]
    return accuracy_by_fold(similarity, same, np.repeat(np.arange(folds), sizes))


def accuracy_by_fold(similarity: Features, same: NDArray[np.bool_], fold: NDArray[np.int64]) -> FoldAccuracies:
    """Return the accuracy on each fold at the best threshold of the others; `fold` holds the fold of each pair."""
    accuracy, threshold = [], []
    for number in np.unique(fold):
        in_fold = fold == number
        threshold.append(best_threshold(similarity[~in_fold], same[~in_fold]))
        accuracy.append(float(np.mean((similarity[in_fold] >= threshold[-1]) == same[in_fold])))
    return FoldAccuracies(tuple(accuracy), tuple(threshold))


def best_threshold(similarity: Features, same: NDArray[np.bool_]) -> float:
    """Return the threshold of highest accuracy: the middle of the lowest optimal interval."""
    if same.all() or not same.any():
        raise UserError("verification", "a threshold needs pairs of the same person and pairs of different people")
    level, levels = np.unique(similarity, return_inverse=True)
    # The change in the number of correct decisions when the threshold passes each level.
    gain = np.bincount(levels, weights=np.where(same, -1.0, 1.0))
    best = int(np.argmax(np.concatenate([[0.0], np.cumsum(gain)])))
    if best == 0:
        return float(level[0])
    if best == len(level):
        return float(np.nextafter(level[-1], level.dtype.type(np.inf)))
    middle = ((level[best - 1].astype(np.float64) + level[best]) / 2).astype(level.dtype)
    return float(middle if middle > level[best - 1] else level[best])  # adjacent floats have no middle
