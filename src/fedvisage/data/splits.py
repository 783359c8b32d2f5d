"""Splits by subject: nobody's face is in two splits, or the test would reward remembering it."""

from collections.abc import Sequence

import numpy as np


def split_subjects(
    subjects: Sequence[str], labels: Sequence[int], share: float, generator: np.random.Generator
) -> dict[str, str]:
    """Return the split, train or heldout, of each subject that the images name.

    About `share` of the subjects are held out, drawn separately among those who have bona fide images only, attacks
    only, and both: each of these kinds is in both splits if it has two subjects.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be from 0 to below 1, got {share}")
    classes: dict[str, set[int]] = {}
    for subject, label in zip(subjects, labels, strict=True):
        classes.setdefault(subject, set()).add(int(label))
    groups: dict[tuple[int, ...], list[str]] = {}
    for subject in sorted(classes):
        groups.setdefault(tuple(sorted(classes[subject])), []).append(subject)
    heldout: set[str] = set()
    for kind in sorted(groups):
        members = groups[kind]
        count = _heldout_count(len(members), share)
        heldout.update(members[index] for index in generator.permutation(len(members))[:count])
    return {subject: "heldout" if subject in heldout else "train" for subject in sorted(classes)}


def _heldout_count(members: int, share: float) -> int:
    """Return how many to hold out: the rounded share, but one at least and one less than all at most."""
    if share == 0 or members < 2:
        return 0
    return min(max(round(share * members), 1), members - 1)
