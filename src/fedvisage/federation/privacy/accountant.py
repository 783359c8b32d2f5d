"""The privacy account of a site: the cost of its releases together, and the decision about the next one.

A site writes a charge durably *before* it draws the noise of a release. It stores the release before sending it, and
after an interruption it sends the stored value again instead of drawing a new one. There are two figures: the sum of ε
and of δ, as in PrivacyFace (Definition 4), and the tight ε at a δ. Gaussian releases compose in closed form (k releases
with the multipliers m_i equal one with 1/√(Σ 1/m_i²)), so the tight figure for these alone is exact; with selections,
or for Gaussian releases of a random sample, it comes from privacy loss distributions (S. Meiser and E. Mohammadi,
"Tight on budget?", CCS 2018).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedvisage.base.errors import RunFailed, UserError

if TYPE_CHECKING:  # reports name the relations without having torch
    from fedvisage.federation.privacy.mechanisms import Budget

Relation = Literal["add-remove", "replace-one", "paper", "site", "image", "person", "person-exchanged"]
Mechanism = Literal["gaussian", "selection", "sampled-gaussian"]
Count = Literal["sum", "tight"]
Selections = tuple[tuple[float, int], ...]
"""Pairs of an ε and the number of selections that have it, in ascending order."""

PROTECTED_UNIT: Mapping[Relation, str] = {
    "add-remove": "one class centre added or removed",
    "replace-one": "one class centre exchanged for another",
    "paper": "as the paper counts it, not end to end",
    "site": "all data of one site: its update, or none",
    "image": "one training image of a site, with its label, exchanged for another",
    "person": "all images of one person at one site, added or removed",
    "person-exchanged": "all images of one person at one site, exchanged for another person's",
}
"""The difference between neighbours under each relation; every ε is shown with it."""


class BudgetSpent(RunFailed):
    """A release that would exceed the run's budget; it was not made, and the run stops."""


@dataclass(frozen=True)
class Charge:
    """The cost of a release: plain data, written as a line of JSON.

    ``release`` is its permanent name; ``times`` releases of one mechanism cost ``epsilon`` and ``delta`` together. A
    selection is pure ε-differential privacy; its ``sigma`` is 0. A sampled Gaussian release is of a sum over people who
    were drawn independently with probability ``rate``.
    """

    release: str
    mechanism: Mechanism
    epsilon: float
    delta: float
    relation: Relation
    sensitivity: float
    sigma: float
    times: int = 1
    rate: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the charge as plain values, without the rate of a mechanism that has none."""
        return {name: value for name, value in asdict(self).items() if name != "rate" or value is not None}

    def guarantee(self) -> str:
        """Return the text for the ledger."""
        noise = f"σ {self.sigma:.4g}, Δ {self.sensitivity:.4g}" if self.sigma else f"Δ {self.sensitivity:.4g}"
        noise += "" if self.rate is None else f", rate {self.rate:g}"
        return (
            f"{self.mechanism} × {self.times}, {noise}, ε {self.epsilon:.4g}, δ {self.delta:.3g} "
            f"({PROTECTED_UNIT[self.relation]})"
        )


@dataclass(frozen=True)
class JointCost:
    """The cost of releases: the sum of ε and of δ, and the tight ε at ``at_delta``."""

    epsilon: float
    delta: float
    tight_epsilon: float
    at_delta: float


def joint_cost(charges: Sequence[Charge], at_delta: float) -> JointCost:
    """Return the joint cost of charges, by sum and tightly."""
    if len({charge.relation for charge in charges}) > 1:
        raise ValueError("charges under different neighbouring relations do not add up")
    return JointCost(
        epsilon=math.fsum(charge.epsilon for charge in charges),
        delta=math.fsum(charge.delta for charge in charges),
        tight_epsilon=tight_epsilon(charges, at_delta),
        at_delta=at_delta,
    )


def tight_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Return the smallest ε that the mechanisms together are known to give at a δ."""
    # The import takes a second, which only runs with such a mechanism should wait for.
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    if any(charge.mechanism == "sampled-gaussian" for charge in charges):
        steps = Counter[tuple[float, float]]()
        for charge in charges:
            if charge.mechanism != "sampled-gaussian" or charge.rate is None:
                raise ValueError("sampled releases have no joint account with other mechanisms")
            steps[charge.sigma / charge.sensitivity, charge.rate] += charge.times
        return _epsilon_of_steps(tuple(sorted(steps.items())), delta)
    precision = math.fsum(
        charge.times * (charge.sensitivity / charge.sigma) ** 2 for charge in charges if charge.mechanism == "gaussian"
    )
    multiplier = 1 / math.sqrt(precision) if precision else math.inf
    selections = Counter[float]()
    for charge in charges:
        if charge.mechanism == "selection":
            selections[charge.epsilon / charge.times] += charge.times
    if not selections:
        return float(get_epsilon_gaussian(multiplier, delta))
    return min(
        _by_loss_distributions(multiplier, tuple(sorted(selections.items())), delta),
        math.fsum(epsilon * times for epsilon, times in selections.items())
        + float(get_epsilon_gaussian(multiplier, delta)),
    )


@functools.cache
def _epsilon_of_steps(steps: tuple[tuple[tuple[float, float], int], ...], delta: float) -> float:
    """Return an upper bound of ε for numbers of steps, each with a noise multiplier and a rate of sampling."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
    from dp_accounting.pld import PLDAccountant

    losses = [times / multiplier**2 for (multiplier, _), times in steps]
    if min(multiplier for (multiplier, _), _ in steps) < LEAST_MULTIPLIER:
        # The loss distribution would take minutes. Without sampling, the same steps cost more.
        return float(get_epsilon_gaussian(1 / math.sqrt(math.fsum(losses)), delta))
    reach = math.fsum(losses) / 2 + TAILS * math.sqrt(math.fsum(losses))
    accountant = PLDAccountant(value_discretization_interval=max(SAMPLED_STEP, reach / MOST_STEPS))
    for (multiplier, rate), times in steps:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), times)
    return float(accountant.get_epsilon(delta))


def sampled_noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return a noise multiplier with which sampled steps meet a budget; the smallest is at most 0.1 % smaller."""

    def meets(multiplier: float) -> bool:
        return _epsilon_of_steps((((multiplier, rate), steps),), delta) <= epsilon

    upper = 1.0
    while not meets(upper):
        upper *= 2
        if upper > LARGEST_MULTIPLIER:
            raise UserError("recipe.training.privacy.epsilon", f"{epsilon:g} is too low for {steps} steps; raise it")
    while meets(upper / 2):
        upper /= 2
    lower = upper / 2
    while upper > lower * 1.001:
        middle = math.sqrt(lower * upper)
        lower, upper = (lower, middle) if meets(middle) else (middle, upper)
    return upper


SAMPLED_STEP, LEAST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 0.05, 2.0**20
"""Of sampled releases: the smallest step in ε of loss distributions, the smallest noise multiplier (an ε of about 280)
of which the account uses the sampling, and the largest one."""

FINEST_STEP, MOST_STEPS, TAILS = 1e-4, 4e6, 10
"""Of privacy loss distributions: smallest step in ε, largest number of steps, and reach in standard deviations."""

RELATIONS: tuple[Relation, ...] = ("add-remove", "replace-one", "paper", "site", "image", "person", "person-exchanged")
MECHANISMS: tuple[Mechanism, ...] = ("gaussian", "selection", "sampled-gaussian")
COLUMNS = 7
"""Number of columns of the table in which costs cross the wire; sampled releases add their rate."""


def table_of(charges: Sequence[Charge], total: JointCost) -> list[list[float]]:
    """Return costs as rows of numbers: first the running total, then one row per charge."""
    relation = RELATIONS.index(charges[0].relation if charges else "paper")  # only this mechanism may have no charges
    rows = [[relation, total.epsilon, total.delta, total.tight_epsilon, total.at_delta, 0.0, 0.0, 0.0]]
    for charge in charges:
        kinds = [float(MECHANISMS.index(charge.mechanism)), float(RELATIONS.index(charge.relation))]
        costs = [charge.epsilon, charge.delta, charge.sensitivity, charge.sigma, float(charge.times)]
        rows.append([*kinds, *costs, charge.rate or 0.0])
    has_rate = any(charge.rate is not None for charge in charges)
    return rows if has_rate else [row[:COLUMNS] for row in rows]


def costs_from_table(rows: Sequence[Sequence[float]]) -> tuple[tuple[Charge, ...], JointCost]:
    """Return the charges and the total of a site's table of costs; raise an error for invalid numbers."""
    charges = []
    try:
        for number, row in enumerate(rows[1:], start=1):
            mechanism, relation = MECHANISMS[_index(row[0])], RELATIONS[_index(row[1])]
            epsilon, delta, sensitivity, sigma, times = *row[2:6], _index(row[6])
            name = f"release {number}"
            rate = row[COLUMNS] if mechanism == "sampled-gaussian" else None
            charges.append(Charge(name, mechanism, epsilon, delta, relation, sensitivity, sigma, times, rate))
        return tuple(charges), JointCost(*rows[0][1:5])
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError("is not a table of costs") from error


def _index(number: float) -> int:
    if not 0 <= number == int(number):
        raise ValueError(f"{number} is not an integer")
    return int(number)


def new_charges(written: Sequence[Charge], wanted: Sequence[Charge], total: Budget, count: Count) -> tuple[Charge, ...]:
    """Return the charges to write now, possibly none, because a written charge is never paid twice.

    ``count`` selects the figure that must stay within the total.
    """
    charged = {charge.release: charge for charge in written}
    for charge in wanted:
        if charged.get(charge.release, charge) != charge:
            raise RunFailed(f"{charge.release}: was already charged at a different cost; its settings must not change")
    fresh = tuple(charge for charge in wanted if charge.release not in charged)
    cost = joint_cost([*written, *fresh], total.delta)
    slack = 1 + 1e-9  # ten tenths must not exceed the total by rounding
    epsilon, delta = (cost.epsilon, cost.delta) if count == "sum" else (cost.tight_epsilon, cost.at_delta)
    if fresh and not (epsilon <= total.epsilon * slack and delta <= total.delta * slack):
        raise BudgetSpent(
            f"{fresh[0].release}: would raise the cost to ε {epsilon:.4g} at δ {delta:.3g}, and the budget "
            f"of the run is ε {total.epsilon:.4g} at δ {total.delta:.3g}; nothing was released"
        )
    return fresh


# The figure takes seconds, and the server and each site need the same one for every release.
@functools.cache
def _by_loss_distributions(multiplier: float, selections: Selections, delta: float) -> float:
    """Return an upper bound for one Gaussian release composed with selections that are known by their ε only."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as losses

    # With very little noise losses reach too far for the finest step. Wider steps round losses up, so that the figure
    # stays an upper bound.
    shift = 1 / multiplier
    reach = shift**2 / 2 + TAILS * shift + math.fsum(epsilon * times for epsilon, times in selections)
    step = max(FINEST_STEP, reach / MOST_STEPS)
    if step > 1:  # rounded up this far, the figure is above the sum of both
        return math.inf
    composed = losses.identity(step)
    if math.isfinite(multiplier):
        composed = losses.from_gaussian_mechanism(multiplier, value_discretization_interval=step)
    for epsilon, times in selections:
        selection = losses.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, 0.0), step)
        composed = composed.compose(selection.self_compose(times))
    return float(composed.get_epsilon_for_delta(delta))
