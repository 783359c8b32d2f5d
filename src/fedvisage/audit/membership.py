"""Membership inference: does the model recognise people better whom it was trained on, so that an outsider can tell?

The attacker has some photos of a person and the finished model, and scores how close the photos lie to each other
(a simple form of G. Li, S. Rezaei, X. Liu, "User-level membership inference attack against metric embedding learning",
2022). People of the training set against others of the same kind: an AUC of ½ is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedvisage.metrics.similarity import Faces

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Membership:
    """How well scores tell members from others, and how many of each there were."""

    auc: float
    p_value: float
    tpr_at_fpr_1pct: float
    members: int
    others: int


def closeness(faces: Faces) -> Scores:
    """Return for each identity with two photos or more the mean similarity of its photos with each other."""
    unit = faces.features / np.linalg.norm(faces.features, axis=1, keepdims=True)
    similarities = []
    for identity in np.unique(faces.identity):
        own = unit[faces.identity == identity].astype(np.float64)
        if len(own) > 1:
            total = np.square(np.linalg.norm(own.sum(axis=0))) - len(own)
            similarities.append(total / (len(own) * (len(own) - 1)))
    return np.array(similarities)


def membership(members: Scores, others: Scores) -> Membership:
    """Return what scores tell, higher ones speaking for membership; Mann and Whitney's test says if it is a guess."""
    test = stats.mannwhitneyu(members, others, alternative="greater")
    ordered = np.sort(others)[::-1]
    threshold = ordered[int(0.01 * len(others))]
    return Membership(
        auc=float(test.statistic) / (len(members) * len(others)),
        p_value=float(test.pvalue),
        tpr_at_fpr_1pct=float((members > threshold).mean()),
        members=len(members),
        others=len(others),
    )
