"""How a face's embedding becomes the bytes that are kept, and a person's templates the vector that is searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Features, unit

# Renewable templates: the signs of a keyed projection, of which another key gives others (after Jin, Ling and Goh).
#
# A. T. B. Jin, D. N. C. Ling, A. Goh, "BioHashing: two factor authentication featuring fingerprint data and
# tokenised
# random number", Pattern Recognition 37 (2004), §3: project on orthonormal directions that a seed draws, keep the
# signs.
# If the share of signs in which two templates differ is h, the angle between the faces is about πh: Goemans and
# Williamson, J. ACM 42 (1995), lemma 3.2. So a collection's similarities stay estimates of cosines, and the model's
# threshold keeps its meaning.
#
# What it is: a leaked template can be revoked, by a new seed and a new enrolment, and templates of two seeds tell
# little
# about being one person's. What it is not: irreversible or unlinkable for whoever has the seed as well; see
# docs/gallery.md for figures. So seeds are sealed by the gallery's key.


BITS = 1024


def directions(seed: bytes, size: int, bits: int = BITS) -> Features:
    """Return the directions (``size`` × ``bits``) that a seed draws: orthonormal in groups of up to ``size``."""
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))
    groups, left = list[NDArray[np.float64]](), bits
    while left > 0:
        turned, upper = np.linalg.qr(rng.standard_normal((size, size)))
        groups.append((turned * np.sign(np.diag(upper)))[:, : min(left, size)])
        left -= size
    return np.concatenate(groups, axis=1).astype(np.float32)


def protect(vector: Features, projection: Features) -> bytes:
    """Return a face's template: a bit for each direction, whether the face points along it."""
    return np.packbits(vector @ projection > 0).tobytes()


def as_vector(templates: Sequence[bytes], bits: int = BITS) -> Features:
    """Return a person's templates as one vector of unit length, whose products with others tell how many signs agree.

    Each direction has the sign of most of them, and where they are even that of the first.
    """
    rows = [np.unpackbits(np.frombuffer(one, np.uint8), count=bits).astype(np.float32) * 2 - 1 for one in templates]
    signs = np.sign(np.sum(rows, axis=0) + rows[0] / 2)
    return np.asarray(signs / np.float32(np.sqrt(bits)), np.float32)


def as_cosine(agreement: float) -> float:
    """Return the cosine that an agreement (−1: no sign alike, 1: all) is an estimate of."""
    return float(np.sin(np.pi / 2 * np.clip(agreement, -1.0, 1.0)))


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
