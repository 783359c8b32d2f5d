"""Labelled face features, and cosine similarities between large sets of them in little memory.

The similarities of all pairs of two large sets are never in memory at once: `blocks` yields them in blocks, and
`HighestValues` keeps the highest impostor similarities, which determine a threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvisage.base.errors import UserError

Features = NDArray[np.float32]  # one row per face
Identities = NDArray[np.int64]

ROWS, COLUMNS = 512, 2048  # a block of similarities and its mask fit in a core's cache
SPARE = ROWS * COLUMNS


@dataclass(frozen=True, eq=False)
class Faces:
    """Features of faces with their identities."""

    features: Features
    identity: Identities

    def __post_init__(self) -> None:
        """Reject inputs that would silently make every figure wrong."""
        if self.features.ndim != 2 or self.identity.shape != self.features.shape[:1]:
            raise ValueError(f"{self.features.shape} features do not match {self.identity.shape} identities")
        if not np.isfinite(self.features).all():
            raise ValueError("a feature is not finite")

    def __len__(self) -> int:
        """Return the number of faces."""
        return len(self.identity)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Faces:
        """Return the faces at `index`."""
        return Faces(self.features[index], self.identity[index])


def join_faces(parts: Sequence[Faces]) -> Faces:
    """Concatenate sets of faces in the given order."""
    return Faces(np.concatenate([part.features for part in parts]), np.concatenate([part.identity for part in parts]))


class SimilarityBlock(NamedTuple):
    """Similarities of some rows with some columns; the next block overwrites the array."""

    rows: slice
    columns: slice
    similarity: Features


class HighestValues:
    """The exact `wanted` highest numbers of a stream, in memory for about twice as many.

    Once `wanted` numbers are stored, a number that does not exceed the lowest of them is ignored. −∞ is never stored,
    so it can mark pairs that do not count.
    """

    def __init__(self, wanted: int) -> None:
        """Allocate the buffer; memory pages are only used once they are written."""
        self._count, self._filled = wanted, 0
        self._values: Features = np.empty(max(2 * wanted, wanted + SPARE), np.float32)
        self._bar = np.float32(-np.inf)

    def add(self, values: Features) -> None:
        """Add numbers from the stream."""
        flat = values.ravel()
        passing = flat[flat > self._bar]
        while len(passing):
            chunk = passing[: len(self._values) - self._filled]
            self._values[self._filled : self._filled + len(chunk)] = chunk
            self._filled += len(chunk)
            passing = passing[len(chunk) :]
            if self._filled == len(self._values):
                self._forget()

    def values(self) -> Features:
        """Return the highest numbers in descending order; fewer if the stream was shorter."""
        self._forget()
        return np.sort(self._values[: self._filled])[::-1]

    def _forget(self) -> None:
        """Discard all but the highest numbers and raise the bar to the lowest of them."""
        excess = self._filled - self._count
        if excess < 0:
            return
        self._values[: self._filled].partition(excess)
        self._values[: self._count] = self._values[excess : self._filled]
        self._filled, self._bar = self._count, self._values[0]


def label_features(features: ArrayLike, identity: ArrayLike) -> Faces:
    """Normalise features to unit length and label them."""
    return Faces(normalise(features), np.asarray(identity, np.int64))


def normalise(features: ArrayLike) -> Features:
    """Divide each row by its length; rows of zeros have no direction and raise an error."""
    rows = np.ascontiguousarray(features, np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(length) & (length > 0)).all():
        raise ValueError("a feature is zero or not finite")
    return np.asarray(rows / length)


def blocks(first: Features, second: Features) -> Iterator[SimilarityBlock]:
    """Yield the similarities of all rows of `first` with all rows of `second` in blocks."""
    buffer = np.empty(ROWS * COLUMNS, np.float32)
    for top in range(0, len(first), ROWS):
        rows = first[top : top + ROWS]
        for left in range(0, len(second), COLUMNS):
            columns = second[left : left + COLUMNS]
            out = buffer[: len(rows) * len(columns)].reshape(len(rows), len(columns))
            np.matmul(rows, columns.T, out=out)
            yield SimilarityBlock(slice(top, top + len(rows)), slice(left, left + len(columns)), out)


def upper_blocks(faces: Faces) -> Iterator[tuple[Features, NDArray[np.bool_]]]:
    """Yield blocks of similarities of each face with all later ones, and masks of pairs of two identities."""
    for top in range(0, len(faces), ROWS):
        head, rest = faces.features[top : top + ROWS], faces.features[top:]
        for rows, columns, similarity in blocks(head, rest):
            later = np.arange(columns.start, columns.stop)[None, :] > np.arange(len(head))[:, None]
            differs = faces.identity[top:][rows][:, None] != faces.identity[top:][columns][None, :]
            yield similarity, later & differs


def pair_similarity(features: Features, first: NDArray[np.int64], second: NDArray[np.int64]) -> Features:
    """Return the similarity of each listed pair of rows."""
    similarity = np.empty(len(first), np.float32)
    for start in range(0, len(first), COLUMNS):
        piece = slice(start, start + COLUMNS)
        np.einsum("ij,ij->i", features[first[piece]], features[second[piece]], out=similarity[piece])
    return similarity


def combine_templates(
    features: Features, template: Identities, media: Identities, *, weight: Features | None = None
) -> Faces:
    """Combine the images of each template (IJB): the mean over each medium's images, summed and normalised.

    Pass features of unit length, or unnormalised ones so that longer features weigh more; `weight` multiplies the
    feature of each image, such as by detector scores. Add the features of flipped images beforehand. The result is
    labelled by template.
    """
    weighted = features if weight is None else features * weight[:, None]
    order = np.lexsort((media, template))
    key = np.stack([template[order], media[order]])
    starts = np.flatnonzero(np.concatenate([[True], (key[:, 1:] != key[:, :-1]).any(axis=0)]))
    images = np.diff(np.append(starts, len(order)))
    means = np.add.reduceat(weighted[order], starts) / images[:, None]
    names, first = np.unique(key[0, starts], return_index=True)
    return label_features(np.add.reduceat(means, first), names)


def check_disjoint(first: Iterable[int], second: Iterable[int], place: str) -> None:
    """Raise a UserError if an identity is on both sides, where an apparent impostor pair would be genuine."""
    shared = sorted(set(first) & set(second))
    if shared:
        message = f"{len(shared)} identities are on both sides, such as {shared[0]}; each must be on one side only"
        raise UserError(place, message)


def measurable_rates(rates: Sequence[float], count: int) -> tuple[float, ...]:
    """Return the rates that this number of comparisons can measure: those of at least one comparison."""
    return tuple(rate for rate in rates if rate * count >= 1 - 1e-9)


def require_measurable(rates: Sequence[float], count: int, place: str, counted: str) -> None:
    """Raise a UserError for a rate below one comparison, which would only be a guess."""
    for rate in rates:
        if not 0 < rate <= 1:
            raise UserError(place, f"a rate must be in (0, 1], got {rate}")
        if not measurable_rates([rate], count):
            raise UserError(
                place,
                f"{rate:g} is below one in {count} {counted}, too low to measure; choose "
                f"{1 / count:.1e} or more, or add faces",
            )


def hard_negatives(public: Features, local: Features, threshold: float) -> NDArray[np.int64]:
    """Return the positions of public features whose similarity to any local feature exceeds the threshold.

    These are hard negatives for training (FedFR, "Hard Negative Sampling Strategy"). Both arrays hold features of unit
    length. Similarities are computed and discarded in blocks, so memory does not grow with the product of the two sets.
    """
    hard = np.zeros(len(public), dtype=bool)
    for rows, _, similarity in blocks(public, local):
        hard[rows] |= similarity.max(axis=1) > threshold
    return np.flatnonzero(hard)
