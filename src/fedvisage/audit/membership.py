"""Membership inference: detect from photographs of a person whether a site trained on that person.

The attacker has the finished model and a few photographs of a person, and scores the similarity of the photographs to
each other (a simple form of G. Li, S. Rezaei, X. Liu, "User-level membership inference attack against metric embedding
learning", 2022). The audit compares people of the training set with other people of the same kind; an AUC of ½ is a
guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedvisage.audit.finding import Audit, AuditedRun, Finding
from fedvisage.audit.released import obstacle as common
from fedvisage.audit.released import open_feature_model
from fedvisage.data.batches import View
from fedvisage.metrics.similarity import Faces

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Membership:
    """The separation of members from other people by their scores, and the number of each."""

    auc: float
    p_value: float
    tpr_at_fpr_1pct: float
    members: int
    others: int


def closeness(faces: Faces) -> Scores:
    """Return the mean pairwise similarity of each identity's photographs; it leaves out single photographs."""
    unit = faces.features / np.linalg.norm(faces.features, axis=1, keepdims=True)
    similarities = []
    for identity in np.unique(faces.identity):
        rows = unit[faces.identity == identity].astype(np.float64)
        if len(rows) > 1:
            total = np.square(np.linalg.norm(rows.sum(axis=0))) - len(rows)
            similarities.append(total / (len(rows) * (len(rows) - 1)))
    return np.array(similarities)


def membership(members: Scores, others: Scores) -> Membership:
    """Compare members' scores with those of others (higher means member); the p-value is Mann and Whitney's."""
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


LEAST = 2
"""Fewest people per group for which the audit reports a result."""


def obstacle(subject: AuditedRun) -> str:
    """Report that the attack needs a benchmark, whose people serve as non-members."""
    reason = common(subject)
    return reason or (
        "" if subject.data.target is not None else "there is no benchmark with people that nobody trained on"
    )


def attack(subject: AuditedRun) -> Finding:
    """Score the sites' people on held-out photographs, and the people of the benchmark."""
    benchmark = subject.data.target
    assert benchmark is not None
    model = open_feature_model(subject)
    members = closeness(model.faces(View.join([site.heldout for site in subject.people.apart.values()])))
    others = closeness(model.faces(benchmark))
    if min(len(members), len(others)) < LEAST:
        return Finding("Too few people have two photographs each for an estimate.", {})
    inferred = membership(members, others)
    says = (
        "Photographs of people whom a site trained on lie closer to each other than those of others with "
        f"probability {inferred.auc:.3f}; ½ is random guessing (p = {inferred.p_value:.2g}). With one wrong "
        f"accusation in a hundred, {100 * inferred.tpr_at_fpr_1pct:.1f} % of {inferred.members} members are "
        "identified."
    )
    numbers = {"auc": inferred.auc, "p_value": inferred.p_value, "tpr_at_fpr_1pct": inferred.tpr_at_fpr_1pct}
    return Finding(says, numbers | {"members": float(inferred.members), "others": float(inferred.others)})


AUDIT = Audit("membership", "Who was trained on", obstacle, attack)
