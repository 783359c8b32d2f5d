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

from fedvisage.audit.finding import Audit, Finding, Subject
from fedvisage.audit.released import obstacle as common
from fedvisage.audit.released import seen
from fedvisage.data.batches import View
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


# Membership inference on a run: do photographs of a person tell whether a site trained on that person?


LEAST = 2


def obstacle(subject: Subject) -> str:
    """Members are compared with people of the benchmark."""
    why = common(subject)
    return why or ("" if subject.data.user is not None else "there is no benchmark, whose people nobody trained on")


def attack(subject: Subject) -> Finding:
    """Score the sites' people on photographs that were not trained on, and the benchmark's people."""
    people, user = subject.data.people, subject.data.user
    assert people is not None
    assert user is not None
    model = seen(subject)
    members = closeness(model.faces(View.joined([site.heldout for site in people.apart.values()])))
    others = closeness(model.faces(user))
    if min(len(members), len(others)) < LEAST:
        return Finding("Too few people have two photographs each: nothing can be said.", {})
    inferred = membership(members, others)
    says = (
        f"Photographs of people whom a site trained on lie closer to each other than those of others with probability "
        f"{inferred.auc:.3f}; ½ is a guess (p = {inferred.p_value:.2g}). With one wrong accusation in a hundred, "
        f"{100 * inferred.tpr_at_fpr_1pct:.1f} % of {inferred.members} members are found out."
    )
    numbers = {"auc": inferred.auc, "p_value": inferred.p_value, "tpr_at_fpr_1pct": inferred.tpr_at_fpr_1pct}
    return Finding(says, numbers | {"members": float(inferred.members), "others": float(inferred.others)})


AUDIT = Audit("membership", "Who was trained on", obstacle, attack)
