"""PrivacyFace's nearest-neighbour attack (Q. Meng et al., ICLR 2022, A.2.4): the faces closest to released vectors.

The attacker owns a gallery of named faces and looks up the nearest faces of each vector. A class centre leads to its
own identity. A cluster may lead to any identity of its site; compare its hit rate with the share of the gallery that
would be right by chance.

The gallery holds photographs of the sites' people that were not used for training. The people of the benchmark and the
held-out public people are its decoys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.audit.finding import Audit, AuditedRun, Finding, Picture
from fedvisage.audit.released import (
    CENTRES,
    ReleasedVectors,
    SitePeople,
    obstacle,
    open_feature_model,
    people_of,
    released_vectors,
    uploads_sentence,
)
from fedvisage.data.batches import View
from fedvisage.metrics.similarity import Faces

TOPS = (1, 5)


@dataclass(frozen=True, eq=False)
class Matches:
    """The most similar identities of each vector, best first, and the most similar faces of the gallery."""

    identities: NDArray[np.int64]
    faces: NDArray[np.int64]


@dataclass(frozen=True)
class HitRate:
    """The share of vectors with a right identity among the first k, for each k, and the expected share by chance."""

    hits: dict[int, float]
    chance: dict[int, float]
    vectors: int


def nearest(vectors: NDArray[np.float32], gallery: Faces, wanted: int) -> Matches:
    """Return the gallery's identities, ordered by their most similar face, for each vector."""
    names, owner = np.unique(gallery.identity, return_inverse=True)
    rows, faces = [], []
    for similarity in _unit(vectors) @ _unit(gallery.features).T:
        order = np.argsort(-similarity, kind="stable")
        _, first = np.unique(owner[order], return_index=True)
        best = np.sort(first)[:wanted]
        rows.append(names[owner[order][best]])
        faces.append(order[best])
    return Matches(np.array(rows), np.array(faces))


def hit_rate(looked: Matches, right: Sequence[frozenset[int]], gallery: Faces) -> HitRate:
    """Return the hit rates of vectors; ``right`` lists the identities that each vector represents."""
    hits = np.array([[int(name) in truth for name in row] for row, truth in zip(looked.identities, right, strict=True)])
    names = frozenset(np.unique(gallery.identity).tolist())
    rates = {top: float(hits[:, :top].any(axis=1).mean()) for top in TOPS}
    chance = {top: float(np.mean([by_chance(len(truth & names), len(names), top) for truth in right])) for top in TOPS}
    return HitRate(rates, chance, len(right))


def by_chance(right: int, names: int, top: int) -> float:
    """Return the probability that one of ``top`` different identities, drawn at random, is right."""
    miss = 1.0
    for drawn in range(min(top, names)):
        miss *= max(0, names - right - drawn) / (names - drawn)
    return 1 - miss


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


SHOWN = 4
"""Number of vectors of each kind in the picture, each with its three nearest faces."""


def attack(subject: AuditedRun) -> Finding:
    """Look up every vector that the sites would release."""
    model, view = open_feature_model(subject), gallery(subject)
    faces = model.faces(view)
    matches = [(released, nearest(released.vectors, faces, max(TOPS))) for released in released_vectors(subject, model)]
    rows = [row(kind, [pair for pair in matches if pair[0].kind == kind], faces) for kind in kinds(matches)]
    first = rows[0]
    says = (
        f"Of {first['vectors']} class centres, {100 * float(first['top-1']):.1f} % lead to their own identity "
        "at once. The table shows how often a cluster leads to a person of its site, compared with a random "
        f"guess. {uploads_sentence(subject)}"
    )
    shown = "; ".join(kinds(matches))
    caption = (
        f"Up to {SHOWN} vectors of each kind of the first site, from the top: {shown}. On the left the mean "
        "photograph of the people behind a vector, then the three nearest faces"
    )
    people = people_of(subject, model, matches[0][0].site)
    return Finding(says, {}, rows, {"faces": (caption, picture(matches, view, people))})


def gallery(subject: AuditedRun) -> View:
    """Return the images in the attacker's gallery."""
    people = subject.people
    strangers = next((view for view in people.strangers.values() if view is not None), None)
    others = [view for view in (subject.data.target, strangers) if view is not None]
    return View.join([*(site.heldout for site in people.apart.values()), *others])


def kinds(matches: list[tuple[ReleasedVectors, Matches]]) -> list[str]:
    """Return the kinds of vectors, in order of appearance."""
    return list(dict.fromkeys(vectors.kind for vectors, _ in matches))


def row(kind: str, matches: list[tuple[ReleasedVectors, Matches]], faces: Faces) -> dict[str, str | float]:
    """Return one row of the table: the hit rates of one kind of vector over all sites."""
    looked = Matches(
        np.concatenate([nearby.identities for _, nearby in matches]),
        np.concatenate([nearby.faces for _, nearby in matches]),
    )
    rate = hit_rate(looked, [truth for released, _ in matches for truth in released.right], faces)
    figures: dict[str, str | float] = {"told": kind, "right is": "the identity" if kind == CENTRES else "anybody there"}
    for top in TOPS:
        figures |= {f"top-{top}": rate.hits[top], f"by chance, top-{top}": rate.chance[top]}
    return figures | {"vectors": rate.vectors}


def picture(matches: list[tuple[ReleasedVectors, Matches]], view: View, people: SitePeople) -> Picture:
    """Return the first site's vectors, grouped by kind: per row a mean photograph and the three nearest faces."""
    shown = [(released, looked) for released, looked in matches if released.site == matches[0][0].site]
    positions = np.concatenate([looked.faces[:SHOWN, :3].reshape(-1) for _, looked in shown])
    images = view.batch(positions.astype(np.int64)).images.permute(0, 2, 3, 1).numpy()
    behind = torch.cat([people.behind(released)[:SHOWN] for released, _ in shown])
    means = (behind * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(
        np.concatenate(
            [np.concatenate([mean, *images[3 * row : 3 * row + 3]], axis=1) for row, mean in enumerate(means)]
        )
    )


AUDIT = Audit("nearest-neighbour", "Whose faces lie next to what sites tell", obstacle, attack)
