"""How well a model does on a published list of pairs, as LFW asks: accuracy on the list's folds, and TAR@FAR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.batches import View
from fedvisage.data.pairs import ListedPairs, image_named, read_pairs
from fedvisage.errors import UserError
from fedvisage.metrics.similarity import Faces, Features, measurable, pair_similarity
from fedvisage.metrics.verification import FARS, Folds, accuracy_by_fold, verify_pairs


@dataclass(frozen=True, eq=False)
class Found:
    """The pairs of a list whose images there are: their places, whether each is of one person, its fold."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    same: NDArray[np.bool_]
    fold: NDArray[np.int64]
    left_out: int

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.same)


@dataclass(frozen=True, eq=False)
class OnPairs:
    """What a model makes of the pairs; no folds where fewer than two have pairs, or pairs are of one kind."""

    pairs: Found
    similarity: Features
    folds: Folds | None
    tar: dict[float, float]


def pairs_among(view: View, path: str) -> Found:
    """Read a list of pairs and look up its images in a view."""
    names = {image_named(str(item)): place for place, item in enumerate(view.items)}
    identity = np.unique(view.subjects, return_inverse=True)[1].astype(np.int64)
    return find_pairs(read_pairs(Path(path)), names, identity, path)


def find_pairs(listed: ListedPairs, images: Mapping[str, int], identity: NDArray[np.int64], place: str) -> Found:
    """Look up the images of a list; pairs of images that are not there are left out and counted.

    A list that calls two people one, or one two, does not belong to these images and is refused.
    """
    first, second = (np.array([images.get(name, -1) for name in names]) for names in (listed.first, listed.second))
    here = (first >= 0) & (second >= 0)
    if not here.any():
        raise UserError(place, f"none of its {len(listed)} pairs, such as {listed.first[0]} and {listed.second[0]}, is "
                        "among the images; give the set that the list is about")  # fmt: skip
    first, second, same = first[here], second[here], listed.same[here]
    wrong = np.flatnonzero((identity[first] == identity[second]) != same)
    if len(wrong):
        at = int(np.flatnonzero(here)[wrong[0]])
        said = "one person, and the set two" if listed.same[at] else "two people, and the set one"
        raise UserError(place, f"says that {listed.first[at]} and {listed.second[at]} are {said}")
    return Found(first, second, same, listed.fold[here], int((~here).sum()))


def on_listed_pairs(faces: Faces, pairs: Found) -> OnPairs:
    """Compare the faces of each pair."""
    similarity = pair_similarity(faces.features, pairs.first, pairs.second)
    both = all(len(np.unique(pairs.same[pairs.fold != one])) == 2 for one in np.unique(pairs.fold))
    enough = both and len(np.unique(pairs.fold)) > 1
    folds = accuracy_by_fold(similarity, pairs.same, pairs.fold) if enough else None
    fars = measurable(FARS, int((~pairs.same).sum()))
    tar = verify_pairs(similarity, pairs.same, fars).tar if fars and pairs.same.any() else {}
    return OnPairs(pairs, similarity, folds, tar)
