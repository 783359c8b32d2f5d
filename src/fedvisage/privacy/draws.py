"""Where the noise of a release comes from: the operating system's entropy, or, in a simulation, a derived stream.

A guarantee of differential privacy holds against all who do not know the noise. A stream derived from a run's seed
can be drawn again by anybody who has the recipe, and torch's generator looks at 32 bits of its seed only, few enough to
try them all. So every number of deployment noise is made from eight fresh bytes of the operating system.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

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
