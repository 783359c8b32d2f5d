"""Faces for the tests of recognition metrics: features whose similarities are exact in float32, and tie often."""

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Faces, label_features


def tied_faces(seed: int, identities: list[int], images: int, dimensions: int = 16, noise: float = 0.2) -> Faces:
    """Corners of a cube: similarities are multiples of 1/8. Each image flips some signs of its identity's corner."""
    rng = np.random.default_rng(seed)
    corners = rng.choice([-1.0, 1.0], (len(identities), 1, dimensions))
    flips = np.where(rng.random((len(identities), images, dimensions)) < noise, -1.0, 1.0)
    return label_features((corners * flips).reshape(-1, dimensions), np.repeat(identities, images))


def join_faces(*parts: Faces) -> Faces:
    return Faces(np.concatenate([one.features for one in parts]), np.concatenate([one.identity for one in parts]))


def all_similarities(first: Faces, second: Faces) -> NDArray[np.float64]:
    return first.features.astype(np.float64) @ second.features.astype(np.float64).T


def people(seed: int, identities: int, images: int, width: int = 8) -> Faces:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(identities, 1, width))
    values = centres + rng.normal(size=(identities, images, width))
    return label_features(values.reshape(-1, width), np.repeat(np.arange(identities), images))
