"""The Gaussian mechanism: how much noise a guarantee needs, and the noise itself.

Noise comes from the analytic mechanism (B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential
privacy", ICML 2018). The classic formula, Δ√(2 ln(1.25/δ))/ε, is proved for ε < 1 only: there it adds more noise than
is needed, and from ε ≈ 8 on it adds too little. It is here because Algorithm 1 of PrivacyFace prescribes it.

All of it holds for noise of real numbers. Noise is drawn and added in float64, so that what is released afterwards in
float32 no longer shows the low bits from which the noise of a float could be told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from fedvisage.errors import UserError
from fedvisage.privacy.draws import Draws


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
