"""DP-FedAvg at the level of sites: updates are clipped at the site, noise is added to their sum at the server.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
Algorithm 1 with flat clipping. A site's update is the difference between its upload and the lent weights, over all
floating-point tensors; its L2 norm is at most C. Gaussian noise of standard deviation zC is added to the sum of a
round's updates, and the result is divided by the number of updates. Two runs are neighbours if they differ in all data
of one site: its updates are present, or are zero in every round. So a sum has sensitivity C, and the number of updates
is public.

BatchNorm's running means and variances are clipped and noised with the weights; a variance is kept above a tenth of the
lent one, which uses the noisy value only. Batch counters reveal a site's number of images, so they stay as lent.

Deviations from the paper: all sites have the same weight. The recipe determines the participants of a round publicly,
so sampling gives no privacy: a site pays for each round that selects it, and the account reports the site selected most
often. Noise multipliers come from the analytic Gaussian mechanism, which composes exactly, instead of the moments
accountant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from fedvisage.base.errors import UserError
from fedvisage.base.streams import torch_rng
from fedvisage.federation.method import Method
from fedvisage.federation.privacy.accountant import Charge, JointCost, Relation, joint_cost, tight_epsilon
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, SystemDraws, noise, standard_deviation
from fedvisage.federation.record.attendance import select_sites
from fedvisage.federation.record.releases import COST, Allowance, Releases
from fedvisage.federation.record.store import out_of_reach
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import VARIANCE
from fedvisage.recipe import Recipe

LEAST_VARIANCE = 0.1
"""Smallest variance relative to the lent one: noise can make a variance negative, and a network cannot use that."""


@dataclass(frozen=True)
class NoisePlan:
    """The noise of a run and the cost of its releases, which do not depend on the course of the run."""

    clip: float
    multiplier: float
    delta: float
    paid: tuple[int, ...]
    """For each round, the number of releases so far of the site selected most often."""
    entropy: str
    """Source of the noise: ``system``, or ``derived`` from the run's seed."""

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the noise on a sum."""
        return self.multiplier * self.clip

    def charge(self, name: str, times: int = 1) -> Charge:
        """Return the cost of releases; each has the ε at an even share of δ, so that their sum is a guarantee, too."""
        share = self.delta / max(1, self.paid[-1])
        single = Charge(name, "gaussian", 0.0, 0.0, "site", self.clip, self.sigma)
        return replace(single, epsilon=times * tight_epsilon([single], share), delta=times * share, times=times)

    def allowance(self) -> Allowance:
        """Return the budget of the site's log: the cost of all rounds for a site that every round selects."""
        epsilon = tight_epsilon([self.charge("all rounds", len(self.paid))], self.delta)
        return Allowance(Budget(epsilon * (1 + 1e-6), self.delta), "tight")

    def figures(self, rounds: int) -> dict[str, Any]:
        """Return the cost of ``rounds`` rounds, for ``metrics.json``."""
        times = self.paid[rounds - 1] if rounds else 0
        tight = tight_epsilon([self.charge("so far", times)], self.delta) if times else 0.0
        return {
            "epsilon": tight,
            "delta": self.delta,
            "tight_epsilon": tight,
            "at_delta": self.delta,
            "site": "each",
            "relation": ["site"],
            "noise": self.entropy,
            "noise_multiplier": self.multiplier,
            "clip": self.clip,
            "releases": times,
        }

    def guarantee(self, rounds: int) -> str:
        """Return the ledger's text about weights to which ``rounds`` rounds contributed."""
        figures = self.figures(rounds)
        source = "" if self.entropy == "system" else "; noise from the run's seed, which protects nobody"
        return (
            f"site level, gaussian × {figures['releases']}, σ {self.sigma:.4g}, Δ {self.clip:.4g}: "
            f"ε {figures['epsilon']:.4g} at δ {self.delta:.3g}{source}"
        )


def plan_of(recipe: Recipe) -> NoisePlan | None:
    """Return the plan of a recipe with noise, or None."""
    dp = recipe.federation.dp
    if dp is None or dp.noise == 0:
        return None
    assert dp.delta is not None
    paid, multiplier = most_visits(recipe), dp.noise
    if multiplier is None:
        assert dp.epsilon is not None
        multiplier = math.sqrt(paid[-1]) * standard_deviation(Budget(dp.epsilon, dp.delta), 1.0)
    return NoisePlan(dp.clip, multiplier, dp.delta, paid, dp.entropy)


def most_visits(recipe: Recipe) -> tuple[int, ...]:
    """Return, for each round, the largest number of rounds so far in which one site was selected."""
    names, counts, most = sorted(recipe.data.sites), Counter[str](), []
    for number in range(1, recipe.training.rounds + 1):
        counts.update(select_sites(names, recipe.federation, recipe.runtime.seed, number))
        most.append(max(counts.values()))
    return tuple(most)


def add_noise(
    mean: Message, present: Callable[[], Message], count: int, recipe: Recipe, round_number: int, log: Releases | None
) -> Message:
    """Return a round's mean of ``count`` clipped uploads with noise, if the recipe requests it.

    The noise is charged, drawn and stored once, before any site sees the mean. A killed run returns to a checkpoint and
    then uses the same noise, because sites may have seen the first release. Values that no checkpoint can reach again
    are dropped; the log of charges is kept. ``present`` returns the server's current weights.
    """
    plan = plan_of(recipe)
    if plan is None:
        return mean
    assert log is not None, "a server without a disk releases nothing"
    generator = torch_rng(recipe.runtime.seed, "server", round_number, "noise")
    draws = SystemDraws() if plan.entropy == "system" else DerivedDraws(generator)
    name, lent = f"round {round_number}", present()
    noised = log.release(
        name,
        lambda source: noisy_mean(mean, lent, count, plan, source),
        [plan.charge(name)],
        plan.allowance(),
        draws,
        forget=f"round {round_number - out_of_reach(recipe)}",
    )
    return {key: value for key, value in noised.items() if key != COST.name}


def noisy_mean(mean: Message, lent: Mapping[str, Tensor], count: int, plan: NoisePlan, draws: Draws) -> Message:
    """Return the mean of ``count`` clipped uploads with noise on their sum, in the types of the lent tensors."""
    noised = {}
    for name, value in mean.items():
        before = lent[name]
        if not before.is_floating_point():
            noised[name] = before
            continue
        value = value + noise(tuple(value.shape), plan.sigma, draws) / count
        if name.endswith(VARIANCE):
            value = value.maximum(LEAST_VARIANCE * before.double())
        noised[name] = value.to(before.dtype)
    return noised


# A joint account for noise on the models and for releases of the sites.

OF_A_PERSON: dict[Relation, Relation] = {"add-remove": "person", "replace-one": "person-exchanged", "paper": "paper"}
"""Relation between runs that differ in a person, by the relation between runs that differ in one class centre."""


@dataclass(frozen=True)
class Account:
    """The joint account of noise on the models and of the sites' releases (PrivacyFace, A.3, 4).

    It does not depend on the course of the run. The two protect different things: ``federation.dp`` the effect of a
    site's data on the lent models, a release one class centre. Both concern people. Two runs are neighbours if a site
    has all images of one person or none (or, with ``replace-one``, another person's). Then one class centre differs, if
    each depends on its own person's images and the lent model only, and the update of one site differs by 2C at most,
    because both updates are within C. Every lent model is noisy or the initial one, so releases may depend on it. All
    outputs form a sequence of mechanisms under one relation, which composes by sum and tightly.

    The guarantee holds against parties that see the models and the releases, namely targets and other sites. It does
    not hold against the server, which adds the noise and sees clipped updates. With Algorithm 1 as printed, the sum is
    the paper's count.
    """

    plan: NoisePlan
    release_costs: Callable[[int], tuple[Charge, ...]]
    """Returns the cost of a number of releases of a site."""
    delta: float
    entropy: str

    def charges(self, rounds: int) -> tuple[Charge, ...]:
        """Return the cost of ``rounds`` rounds for the site selected most often, under one relation."""
        times = self.plan.paid[rounds - 1] if rounds else 0
        if not times:
            return ()
        releases = self.release_costs(times)
        relation = OF_A_PERSON[releases[0].relation]
        between = replace(self.plan, clip=2 * self.plan.clip, multiplier=self.plan.multiplier / 2)
        return tuple(
            replace(charge, relation=relation) for charge in (*releases, between.charge("noise on the models", times))
        )

    def total_cost(self, rounds: int) -> JointCost:
        """Return the composed cost of ``rounds`` rounds."""
        return _joint_cost(self.charges(rounds), self.delta)

    def figures(self, rounds: int) -> dict[str, Any]:
        """Return the account for ``metrics.json``."""
        charges = self.charges(rounds)
        return {
            **asdict(self.total_cost(rounds)),
            "site": "each",
            "relation": sorted({charge.relation for charge in charges}),
            "noise": self.entropy,
            "account": [charge.row() for charge in charges],
        }

    def guarantee(self, rounds: int) -> str:
        """Return the ledger's text about weights to which ``rounds`` rounds contributed."""
        total, relation = self.total_cost(rounds), self.charges(rounds)[0].relation
        return (
            f"together with what sites released, {relation} level: ε {total.epsilon:.4g}, δ {total.delta:.3g} by their "
            f"sum, ε {total.tight_epsilon:.4g} tightly"
        )


@lru_cache(maxsize=256)
def _joint_cost(charges: tuple[Charge, ...], delta: float) -> JointCost:
    """Compose charges, with a cache because every outgoing order needs the result."""
    return joint_cost(charges, delta) if charges else JointCost(0.0, 0.0, 0.0, delta)


def account_of(recipe: Recipe, method: Method) -> Account | None:
    """Return the account of a recipe with noise on the models of a method whose sites also release values, or None."""
    budget, release_costs = recipe.privacy, method.release_costs
    if release_costs is None or (plan := plan_of(recipe)) is None:
        return None
    if budget.delta is None:
        raise UserError("recipe.privacy", "does not set a budget; give epsilon and delta for all releases of the run")
    entropy = "derived" if "derived" in (plan.entropy, budget.noise) else "system"
    return Account(plan, lambda times: release_costs(recipe, times), plan.delta + budget.delta, entropy)


def promise_of(recipe: Recipe, method: Method) -> Callable[[int], str]:
    """Return the guarantee for weights as a function of the rounds; without noise on them it is empty."""
    plan, account = plan_of(recipe), account_of(recipe, method)

    def promise(rounds: int) -> str:
        if plan is None or not rounds:
            return ""
        together = [account.guarantee(rounds)] if account is not None else []
        return "; ".join([plan.guarantee(rounds), *together])

    return promise


def figures_of(recipe: Recipe, method: Method, rounds: int, costs: dict[str, Any]) -> dict[str, Any]:
    """Return the privacy section of ``metrics.json``; ``costs`` is the cost of the site that released most."""
    plan, account = plan_of(recipe), account_of(recipe, method)
    if plan is None:
        return costs
    models = plan.figures(rounds)
    return models if account is None else account.figures(rounds) | {"models": models, "releases": costs}
