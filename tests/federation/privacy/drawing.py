"""Repeatable noise and unit vectors, and the exact guarantee of Gaussian noise."""

import math

import numpy as np
from scipy.special import log_ndtr
from torch import Generator

from fedvisage.federation.privacy.mechanisms import DerivedDraws


def draws_of(seed: int) -> DerivedDraws:
    return DerivedDraws(Generator().manual_seed(seed))


def unit(rows: int, dimension: int, seed: int = 0) -> np.ndarray:
    """Return random rows of length one."""
    drawn = np.random.default_rng(seed).normal(size=(rows, dimension))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def delta_of(epsilon: float, sigma: float, sensitivity: float) -> float:
    """Return the exact δ of noise at an ε (Balle and Wang, Eq. 6): Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ)."""
    half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(math.exp(log_ndtr(half - shift)) - math.exp(epsilon + log_ndtr(-half - shift)))
