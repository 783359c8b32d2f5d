"""Membership inference on a run: do photographs of a person tell whether a site trained on that person?"""

from __future__ import annotations

from fedvisage.audit.finding import Audit, Finding, Subject
from fedvisage.audit.membership import closeness, membership
from fedvisage.audit.told import obstacle as common
from fedvisage.audit.told import seen
from fedvisage.data.batches import View

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
