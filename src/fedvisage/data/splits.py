"""Splits by subject. This file does not load torch, because imports of datasets use it in every process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def split_subjects(
    subjects: Sequence[str], labels: Sequence[int], share: float, generator: np.random.Generator
) -> dict[str, str]:
    """Return the split of each subject, `train` or `heldout`.

    A subject is in one split only; otherwise a model could score well by remembering faces. About `share` of the
    subjects are held out. They are drawn separately among subjects with bona fide images only, with attacks only, and
    with both. Each of these kinds is in both splits if it has at least two subjects.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be in [0, 1), got {share}")
    classes: dict[str, set[int]] = {}
    for subject, label in zip(subjects, labels, strict=True):
        classes.setdefault(subject, set()).add(int(label))
    # Group subjects by the classes of their images, so that each kind is split separately.
    groups: dict[tuple[int, ...], list[str]] = {}
    for subject in sorted(classes):
        groups.setdefault(tuple(sorted(classes[subject])), []).append(subject)
    heldout: set[str] = set()
    for kind in sorted(groups):
        members = groups[kind]
        count = 0
        if share and len(members) > 1:
            count = min(max(round(share * len(members)), 1), len(members) - 1)  # at least one, and never all
        heldout.update(members[index] for index in generator.permutation(len(members))[:count])
    return {subject: "heldout" if subject in heldout else "train" for subject in sorted(classes)}


def draw_splits(count: int, test: float, away: bool, rng: np.random.Generator) -> list[str]:
    """Draw the photographs of a person that are for tests; at least one remains for training.

    A person who is kept ``away`` from training has none for either.
    """
    if away:
        return ["heldout"] * count
    tested = min(round(test * count), count - 1) if count else 0
    chosen = set(rng.permutation(count)[:tested].tolist())
    return ["test" if number in chosen else "train" for number in range(count)]
