"""PrivacyFace's nearest-neighbour attack (Q. Meng et al., ICLR 2022, A.2.4): whose faces lie next to what a site told?

The attacker owns a gallery of faces with names, and looks up the nearest for each vector. A class centre leads to its
own identity. A cluster may lead to any identity of its site; what that tells is to be read beside the share of the
gallery that would be right by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Faces

TOPS = (1, 5)


@dataclass(frozen=True, eq=False)
class Looked:
    """The most similar identities of each vector, best first, and the most similar faces of the gallery."""

    identities: NDArray[np.int64]
    faces: NDArray[np.int64]


@dataclass(frozen=True)
class HitRate:
    """How often one of the first k identities is right, for each k, and how often it would be by chance."""

    found: dict[int, float]
    chance: dict[int, float]
    vectors: int


def nearest(vectors: NDArray[np.float32], gallery: Faces, wanted: int) -> Looked:
    """Return the gallery's identities in the order of their most similar face."""
    names, owner = np.unique(gallery.identity, return_inverse=True)
    rows, faces = [], []
    for similarity in _unit(vectors) @ _unit(gallery.features).T:
        order = np.argsort(-similarity, kind="stable")
        _, first = np.unique(owner[order], return_index=True)
        best = np.sort(first)[:wanted]
        rows.append(names[owner[order][best]])
        faces.append(order[best])
    return Looked(np.array(rows), np.array(faces))


def hit_rate(looked: Looked, right: Sequence[frozenset[int]], gallery: Faces, tops: Sequence[int] = TOPS) -> HitRate:
    """Return how often identities were found, ``right`` naming those that each vector stands for."""
    hits = np.array([[int(name) in truth for name in row] for row, truth in zip(looked.identities, right, strict=True)])
    names = frozenset(np.unique(gallery.identity).tolist())
    found = {top: float(hits[:, :top].any(axis=1).mean()) for top in tops}
    chance = {top: float(np.mean([by_chance(len(truth & names), len(names), top) for truth in right])) for top in tops}
    return HitRate(found, chance, len(right))


def by_chance(right: int, names: int, top: int) -> float:
    """Return how likely one of ``top`` different identities drawn blindly is among the right ones."""
    missed = 1.0
    for drawn in range(min(top, names)):
        missed *= max(0, names - right - drawn) / (names - drawn)
    return 1 - missed


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
