"""The Gaussian mechanism: how much noise a guarantee needs, and the noise itself.

Noise comes from the analytic mechanism (B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential
privacy", ICML 2018). The classic formula, Δ√(2 ln(1.25/δ))/ε, is proved for ε < 1 only: there it adds more noise than
is needed, and from ε ≈ 8 on it adds too little. It is here because Algorithm 1 of PrivacyFace prescribes it.

All of it holds for noise of real numbers. Noise is drawn and added in float64, so that what is released afterwards in
float32 no longer shows the low bits from which the noise of a float could be told.
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

# Where the noise of a release comes from: the operating system's entropy, or, in a simulation, a derived stream.
#
# A guarantee of differential privacy holds against all who do not know the noise. A stream derived from a run's seed
# can be drawn again by anybody who has the recipe, and torch's generator looks at 32 bits of its seed only, few
# enough to
# try them all. So every number of deployment noise is made from eight fresh bytes of the operating system.


BITS = 52
"""A float64 holds k + ½ exactly for every whole number k of so many bits, so no draw is rounded to 0 or 1."""


class Draws(Protocol):
    """A source of independent random numbers in float64."""

    def uniform(self, number: int) -> Tensor:
        """Return numbers between 0 and 1."""
        ...

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        ...


class SystemDraws:
    """The operating system's entropy: what a deployment draws its noise from."""

    def uniform(self, number: int) -> Tensor:
        """Return numbers between 0 and 1, neither of them included."""
        whole = np.frombuffer(os.urandom(8 * number), dtype=np.uint64) >> np.uint64(64 - BITS)
        return torch.from_numpy((whole.astype(np.float64) + 0.5) * 2.0**-BITS)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers, by the inverse of their distribution function."""
        numbers: Tensor = torch.special.ndtri(self.uniform(math.prod(shape)))
        return numbers.reshape(shape)


class DerivedDraws:
    """A derived stream, which makes a simulation repeatable and protects nobody."""

    def __init__(self, generator: Generator) -> None:
        """Draw from this generator."""
        self.generator = generator

    def uniform(self, number: int) -> Tensor:
        """Return numbers from 0 to 1, which is excluded."""
        return torch.rand(number, dtype=torch.float64, generator=self.generator)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)


# Public principal directions, in which fewer coordinates need noise: an option of the private clustering.
#
# Noise on a sum has the same size in every coordinate, so in 512 dimensions it is √8 times as long as in 64. Class
# centres are therefore expressed in the leading principal directions of *public* features, under the lent model that
# everybody has, and set to length one again; what is released is turned back into the whole space.
#
# Why the account stays as it is: the directions do not depend on a site's data, and each class centre is mapped by
# itself. So two sets that differ in one class centre still do afterwards, with vectors of length one, for which the
# sensitivity holds. Turning back is work on what was released already, and costs nothing. What is lost is the part
# of a
# cluster that the public directions do not span.


SHORTEST = 1e-6
"""Below this length a projection has no direction left, and the first public one stands for it."""


def principal_directions(features: Tensor, number: int) -> Tensor:
    """Return the leading directions of public features about the origin, one per row, orthonormal."""
    most = min(features.shape)
    if number > most:
        span = f"{len(features)} public images of {features.shape[1]} dimensions span {most} directions at most"
        raise UserError("recipe.method.project", f"is {number}, but {span}; lower it")
    _, _, directions = torch.linalg.svd(features.double(), full_matrices=False)
    leading: Tensor = directions[:number].to(features.dtype)
    return leading


def projected(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return vectors in the coordinates of a basis, each by itself set to length one."""
    coordinates = vectors @ basis.to(vectors.dtype).T
    lengths = torch.linalg.vector_norm(coordinates, dim=1, keepdim=True)
    first = torch.zeros_like(coordinates)
    first[:, 0] = 1
    return torch.where(lengths < SHORTEST, first, coordinates / lengths.clamp(min=SHORTEST))


def lifted(rows: Tensor, basis: Tensor) -> Tensor:
    """Return rows in such coordinates as vectors of the whole space; zeros stay zeros."""
    return rows @ basis.to(rows.dtype)


@dataclass(frozen=True)
class Budget:
    """A guarantee of (ε, δ)-differential privacy: what a release may cost, or did cost."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse what promises nothing or cannot be met with noise."""
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise UserError("epsilon", f"must be a finite number above 0, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise UserError("delta", f"must lie between 0 and 1, both excluded, got {self.delta}")

    def share(self, part: float) -> Budget:
        """Return a part of this budget: that share of ε and of δ."""
        return Budget(self.epsilon * part, self.delta * part)


def standard_deviation(budget: Budget, sensitivity: float) -> float:
    """Return the least σ with which Gaussian noise on a value of this L2 sensitivity meets the budget."""
    return _checked(sensitivity) * _noise_multiplier(budget)


def classic_standard_deviation(budget: Budget, sensitivity: float) -> float:
    """Return the σ of PrivacyFace's Definition 3, which is a guarantee for ε < 1 only."""
    return _checked(sensitivity) * math.sqrt(2 * math.log(1.25 / budget.delta)) / budget.epsilon


def delta_of(epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the δ that noise really gives at an ε (Balle and Wang, Eq. 6): Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ)."""
    from scipy.special import log_ndtr

    half, shift = _checked(sensitivity) / (2 * sigma), epsilon * sigma / sensitivity
    return float(math.exp(log_ndtr(half - shift)) - math.exp(epsilon + log_ndtr(-half - shift)))


def noise(shape: tuple[int, ...], sigma: float, draws: Draws) -> Tensor:
    """Draw independent Gaussian noise of a standard deviation in float64."""
    if not (math.isfinite(sigma) and sigma > 0):
        raise UserError("sigma", f"must be a finite number above 0, got {sigma}")
    return draws.normal(shape) * sigma


@cache
def _noise_multiplier(budget: Budget) -> float:
    """Return σ for a sensitivity of 1; the search for it takes milliseconds, and every draw asks again."""
    # Takes a second to import, which only a run with this mechanism should wait for.
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    return float(get_sigma_gaussian(budget.epsilon, budget.delta))


def _checked(sensitivity: float) -> float:
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise UserError("sensitivity", f"must be a finite number above 0, got {sensitivity}; clip the values first")
    return sensitivity
