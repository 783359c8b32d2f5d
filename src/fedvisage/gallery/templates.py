"""How a face's embedding becomes the bytes that are kept, and a person's templates the vector that is searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fedvisage.gallery.renewable import BITS, as_cosine, as_vector, directions, protect
from fedvisage.metrics.similarity import Features, unit


class Form(Protocol):
    """A way to keep faces."""

    @property
    def length(self) -> int:
        """The bytes of a template."""

    @property
    def width(self) -> int:
        """The numbers of a vector in the index."""

    def kept(self, embedding: Features) -> bytes:
        """Return what is kept of a face (a unit embedding)."""

    def joined(self, templates: Sequence[bytes]) -> Features:
        """Return a person's vector of unit length from all of their templates."""

    def asked(self, embedding: Features) -> Features:
        """Return the vector with which a face is searched for."""

    def similarity(self, product: float) -> float:
        """Return the cosine that a product of two vectors stands for."""


class Plain:
    """The embedding itself; a person's vector is the mean of theirs, at unit length."""

    def __init__(self, size: int) -> None:
        """Take the numbers of an embedding."""
        self.length, self.width = 4 * size, size

    def kept(self, embedding: Features) -> bytes:
        """Return the numbers."""
        return embedding.astype("<f4").tobytes()

    def joined(self, templates: Sequence[bytes]) -> Features:
        """Return the mean, at unit length."""
        rows = np.stack([np.frombuffer(one, "<f4") for one in templates])
        return np.asarray(unit(rows.mean(axis=0, keepdims=True))[0])

    def asked(self, embedding: Features) -> Features:
        """Return the embedding."""
        return embedding

    def similarity(self, product: float) -> float:
        """Return the product, which is the cosine."""
        return product


class Renewable:
    """Signs of a projection that a seed draws; another seed gives other templates."""

    def __init__(self, size: int, seed: bytes) -> None:
        """Draw the directions."""
        self.length, self.width = BITS // 8, BITS
        self._directions = directions(seed, size)

    def kept(self, embedding: Features) -> bytes:
        """Return the signs, a bit each."""
        return protect(embedding, self._directions)

    def joined(self, templates: Sequence[bytes]) -> Features:
        """Return the signs of most."""
        return as_vector(templates)

    def asked(self, embedding: Features) -> Features:
        """Return the embedding's signs: the embedding itself is not compared with anything."""
        return as_vector([self.kept(embedding)])

    def similarity(self, product: float) -> float:
        """Return the cosine that the agreement of signs is an estimate of."""
        return as_cosine(product)
