"""Template forms: convert embeddings into stored templates, and a person's templates into one search vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Features, normalise

# Renewable templates: the signs of a keyed projection; another key gives other templates (after Jin, Ling and Goh).
#
# A. T. B. Jin, D. N. C. Ling, A. Goh, "BioHashing: two factor authentication featuring fingerprint data and tokenised
# random number", Pattern Recognition 37 (2004), §3: project on orthonormal directions drawn from a seed, and keep the
# signs. If two templates differ in a share h of their signs, the angle between the faces is about πh (Goemans and
# Williamson, J. ACM 42 (1995), lemma 3.2). A collection's similarities thus remain estimates of cosines, and the
# model's threshold keeps its meaning.
#
# A leaked template can be revoked, by a new seed and a new enrolment, and templates of two seeds reveal little about
# belonging to one person. With the seed, templates are neither irreversible nor unlinkable; docs/gallery.md has
# figures. Seeds are therefore sealed by the gallery's key.


BITS = 1024


def directions(seed: bytes, size: int) -> Features:
    """Return the directions (``size`` × ``BITS``) drawn from a seed: orthonormal in groups of up to ``size``."""
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))
    groups, remaining = list[NDArray[np.float64]](), BITS
    while remaining > 0:
        turned, upper = np.linalg.qr(rng.standard_normal((size, size)))
        groups.append((turned * np.sign(np.diag(upper)))[:, : min(remaining, size)])
        remaining -= size
    return np.concatenate(groups, axis=1).astype(np.float32)


class Plain:
    """The embedding itself; a person's vector is the mean of their embeddings, at unit length.

    ``length`` is the number of bytes of a template, ``width`` the length of a search vector.
    """

    def __init__(self, size: int) -> None:
        self.length, self.width = 4 * size, size

    def make_template(self, embedding: Features) -> bytes:
        """Return the bytes of the numbers."""
        return embedding.astype("<f4").tobytes()

    def make_vector(self, templates: Sequence[bytes]) -> Features:
        """Return the mean, at unit length."""
        rows = np.stack([np.frombuffer(template, "<f4") for template in templates])
        return np.asarray(normalise(rows.mean(axis=0, keepdims=True))[0])

    def make_query(self, embedding: Features) -> Features:
        """Return the embedding."""
        return embedding

    def similarity(self, product: float) -> float:
        """Return the product, which is the cosine."""
        return product


class Renewable:
    """Signs of a projection drawn from a seed; another seed gives other templates."""

    def __init__(self, size: int, seed: bytes) -> None:
        self.length, self.width = BITS // 8, BITS
        self._directions = directions(seed, size)

    def make_template(self, embedding: Features) -> bytes:
        """Return one bit per direction, set if the face points along it."""
        return np.packbits(embedding @ self._directions > 0).tobytes()

    def make_vector(self, templates: Sequence[bytes]) -> Features:
        """Return a unit vector, whose product with another measures the agreement of signs.

        Each direction has the sign of the majority of templates; ties take the sign of the first template.
        """
        bits = [np.unpackbits(np.frombuffer(template, np.uint8), count=BITS) for template in templates]
        rows = [row.astype(np.float32) * 2 - 1 for row in bits]
        signs = np.sign(np.sum(rows, axis=0) + rows[0] / 2)
        return np.asarray(signs / np.float32(np.sqrt(BITS)), np.float32)

    def make_query(self, embedding: Features) -> Features:
        """Return the signs of the embedding; the embedding itself is never compared."""
        return self.make_vector([self.make_template(embedding)])

    def similarity(self, product: float) -> float:
        """Return the cosine estimated by the agreement of signs (−1: no sign equal, 1: all equal)."""
        return float(np.sin(np.pi / 2 * np.clip(product, -1.0, 1.0)))


Form = Plain | Renewable
"""A storage form of faces."""
