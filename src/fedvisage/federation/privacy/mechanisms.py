"""The Gaussian mechanism: noise sources, the amount of noise for a guarantee, and public projections.

The amount comes from the analytic mechanism (B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for
differential privacy", ICML 2018). The classic formula, Δ√(2 ln(1.25/δ))/ε, is proved for ε < 1 only: there it adds more
noise than needed, and from ε ≈ 8 on it adds too little. It is here because Algorithm 1 of PrivacyFace prescribes it.

These results hold for noise of real numbers. Noise is drawn and added in float64, so that releases in float32 no longer
contain the low bits that could reveal the noise of a float.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from fedvisage.base.errors import UserError

# Sources of noise.
BITS = 52
"""For every integer k of ``BITS`` bits a float64 holds k + ½ exactly, so no draw is rounded to 0 or 1."""


class Draws(Protocol):
    """A source of independent random numbers in float64.

    A guarantee of differential privacy holds against parties that do not know the noise. Anyone with the recipe can
    repeat a stream derived from a run's seed, and torch's generator uses only 32 bits of its seed, few enough to try
    them all. So every number of a deployment's noise uses eight fresh bytes of the operating system.
    """

    def uniform(self, number: int) -> Tensor:
        """Return numbers between 0 and 1."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""


class SystemDraws:
    """The operating system's entropy, the source of noise in deployments."""

    def uniform(self, number: int) -> Tensor:
        """Return numbers between 0 and 1, both excluded."""
        integers = np.frombuffer(os.urandom(8 * number), dtype=np.uint64) >> np.uint64(64 - BITS)
        return torch.from_numpy((integers.astype(np.float64) + 0.5) * 2.0**-BITS)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers, by the inverse of their distribution function."""
        numbers: Tensor = torch.special.ndtri(self.uniform(math.prod(shape)))
        return numbers.reshape(shape)


class DerivedDraws:
    """A derived stream, which makes a simulation repeatable and protects nothing."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def uniform(self, number: int) -> Tensor:
        """Return numbers from 0 (included) to 1 (excluded)."""
        return torch.rand(number, dtype=torch.float64, generator=self.generator)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)


# Public principal directions, an option of the private clustering that reduces the coordinates with noise.
SHORTEST = 1e-6
"""Below this length a projection has no direction, and is replaced by the first public direction."""


def principal_directions(features: Tensor, number: int) -> Tensor:
    """Return the leading directions of public features about the origin, one per row, orthonormal.

    Noise on a sum has the same size in every coordinate, so in 512 dimensions it is √8 times as long as in 64. Class
    centres are therefore expressed in the leading principal directions of *public* features, under the lent model that
    every site has, and normalised again; the release is mapped back to the full space.

    The account does not change, because the directions do not depend on a site's data, and each class centre is mapped
    by itself. So two sets that differ in one class centre still differ in one after the mapping, with vectors of length
    one, for which the sensitivity holds. Mapping back post-processes a release and costs nothing. The part of a cluster
    outside the span of the public directions is lost.
    """
    limit = min(features.shape)
    if number > limit:
        span = f"{len(features)} public images of {features.shape[1]} dimensions span {limit} directions at most"
        raise UserError("recipe.method.project", f"is {number}, but {span}; lower it")
    _, _, directions = torch.linalg.svd(features.double(), full_matrices=False)
    leading: Tensor = directions[:number].to(features.dtype)
    return leading


def project_rows(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return vectors in the coordinates of a basis, each normalised to length one."""
    coordinates = vectors @ basis.to(vectors.dtype).T
    lengths = torch.linalg.vector_norm(coordinates, dim=1, keepdim=True)
    first = torch.zeros_like(coordinates)
    first[:, 0] = 1
    return torch.where(lengths < SHORTEST, first, coordinates / lengths.clamp(min=SHORTEST))


def lift_rows(rows: Tensor, basis: Tensor) -> Tensor:
    """Return rows in the coordinates of a basis as vectors of the full space; zeros stay zeros."""
    return rows @ basis.to(rows.dtype)


@dataclass(frozen=True)
class Budget:
    """A guarantee of (ε, δ)-differential privacy: the limit or the cost of releases."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Raise an error for values that guarantee nothing or that no noise can meet."""
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise UserError("epsilon", f"must be a finite number above 0, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise UserError("delta", f"must lie between 0 and 1, both excluded, got {self.delta}")

    def share(self, part: float) -> Budget:
        """Return a share of this budget: the same share of ε and of δ."""
        return Budget(self.epsilon * part, self.delta * part)


def standard_deviation(budget: Budget, sensitivity: float) -> float:
    """Return the smallest σ with which Gaussian noise on a value of this L2 sensitivity meets the budget."""
    return _check_sensitivity(sensitivity) * _noise_multiplier(budget)


def classic_standard_deviation(budget: Budget, sensitivity: float) -> float:
    """Return the σ of PrivacyFace's Definition 3, which is a guarantee for ε < 1 only."""
    return _check_sensitivity(sensitivity) * math.sqrt(2 * math.log(1.25 / budget.delta)) / budget.epsilon


def noise(shape: tuple[int, ...], sigma: float, draws: Draws) -> Tensor:
    """Return independent Gaussian noise of a standard deviation in float64."""
    if not (math.isfinite(sigma) and sigma > 0):
        raise UserError("sigma", f"must be a finite number above 0, got {sigma}")
    return draws.normal(shape) * sigma


@cache
def _noise_multiplier(budget: Budget) -> float:
    """Return σ for a sensitivity of 1; cached, because the search takes milliseconds and every draw needs it."""
    # The import takes a second, which only runs with this mechanism should wait for.
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    return float(get_sigma_gaussian(budget.epsilon, budget.delta))


def _check_sensitivity(sensitivity: float) -> float:
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise UserError("sensitivity", f"must be a finite number above 0, got {sensitivity}; clip the values first")
    return sensitivity
