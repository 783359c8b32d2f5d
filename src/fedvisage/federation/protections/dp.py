"""DP-FedAvg at the level of sites: updates are clipped at the site, noise is added to their sum at the server.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
Algorithm 1 with flat clipping. The update of a site is what it sends less what it was lent, over all floating-point
tensors; its L2 norm is at most C. To the sum of a round's updates comes Gaussian noise of standard deviation zC, and
the result is divided by the number of updates. Two runs are neighbours if they differ in all data of one site: its
updates are there, or are zero in every round. So a sum has sensitivity C, and the number of updates is no secret.

BatchNorm's running means and variances are clipped and noised with the weights; a variance is kept above a tenth of
what was lent, which uses the noisy value only. Counters of batches tell how many images a site has: they stay as lent.

Deviations from the paper: sites count alike. Who takes part in a round follows from the recipe and is no secret, so no
privacy is claimed from it: a site pays for each round that asks it, and the site that is asked most is reported. Noise
multipliers come from the analytic Gaussian mechanism, which composes exactly, instead of the moments accountant.
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
from fedvisage.federation.declared import Declared
from fedvisage.federation.privacy.accountant import Charge, Relation, Spent, spent, tight_epsilon
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, SystemDraws, noise, standard_deviation
from fedvisage.federation.record.attendance import asked
from fedvisage.federation.record.releases import COST, Allowance, Releases
from fedvisage.federation.record.store import out_of_reach
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import VARIANCE
from fedvisage.recipe import Recipe

LEAST_VARIANCE = 0.1
"""Of the lent one: noise can push a variance below zero, where a network computes nothing."""


@dataclass(frozen=True)
class Plan:
    """What a run's noise is, and what each of its releases costs; it does not change with how the run goes."""

    clip: float
    multiplier: float
    delta: float
    paid: tuple[int, ...]
    """After each round, how many releases the site has paid for that was asked most."""

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on a sum."""
        return self.multiplier * self.clip

    def charge(self, name: str, times: int = 1) -> Charge:
        """Return what releases cost; the ε of one is at an even share of δ, so that their sum is a guarantee, too."""
        share = self.delta / max(1, self.paid[-1])
        one = Charge(name, "gaussian", 0.0, 0.0, "site", self.clip, self.sigma)
        return replace(one, epsilon=times * tight_epsilon([one], share), delta=times * share, times=times)

    def allowance(self) -> Allowance:
        """Return what all rounds may cost in the site's log: what they do cost if one site is asked in each."""
        whole = tight_epsilon([self.charge("all rounds", len(self.paid))], self.delta)
        return Allowance(Budget(whole * (1 + 1e-6), self.delta), "tight")

    def figures(self, rounds: int, entropy: str) -> dict[str, Any]:
        """Return what so many rounds have cost, for ``metrics.json``."""
        times = self.paid[rounds - 1] if rounds else 0
        tight = tight_epsilon([self.charge("so far", times)], self.delta) if times else 0.0
        return {
            "epsilon": tight, "delta": self.delta, "tight_epsilon": tight, "at_delta": self.delta, "site": "each",
            "relation": ["site"], "noise": entropy, "noise_multiplier": self.multiplier, "clip": self.clip,
            "releases": times,
        }  # fmt: skip

    def guarantee(self, rounds: int, entropy: str) -> str:
        """Return the text that stands in the ledger beside weights that so many rounds went into."""
        figures = self.figures(rounds, entropy)
        source = "" if entropy == "system" else "; noise from the run's seed, which protects nobody"
        return (
            f"site level, gaussian × {figures['releases']}, σ {self.sigma:.4g}, Δ {self.clip:.4g}: "
            f"ε {figures['epsilon']:.4g} at δ {self.delta:.3g}{source}"
        )


def plan_of(recipe: Recipe) -> Plan | None:
    """Return the plan of a recipe that asks for noise."""
    dp = recipe.federation.dp
    if dp is None or dp.noise == 0:
        return None
    assert dp.delta is not None
    paid = payments(recipe)
    multiplier = dp.noise
    if multiplier is None:
        assert dp.epsilon is not None
        multiplier = math.sqrt(paid[-1]) * standard_deviation(Budget(dp.epsilon, dp.delta), 1.0)
    return Plan(dp.clip, multiplier, dp.delta, paid)


def payments(recipe: Recipe) -> tuple[int, ...]:
    """Return for each round how often by then the site has been asked that was asked most."""
    names, counts, most = sorted(recipe.data.sites), Counter[str](), []
    for number in range(1, recipe.training.rounds + 1):
        counts.update(asked(names, recipe.federation, recipe.runtime.seed, number))
        most.append(max(counts.values()))
    return tuple(most)


def released(
    mean: Message, lent: Mapping[str, Tensor], count: int, recipe: Recipe, plan: Plan, round_number: int, log: Releases
) -> Message:
    """Return a round's mean with noise: charged, drawn and stored once, before anybody sees it.

    A run that is killed goes back to a checkpoint, and then to the same noise: sites may have seen the first one.
    Values older than any checkpoint to go back to are dropped; the log of charges is not.
    """
    assert recipe.federation.dp is not None
    generator = torch_rng(recipe.runtime.seed, "server", round_number, "noise")
    draws = SystemDraws() if recipe.federation.dp.entropy == "system" else DerivedDraws(generator)
    name = f"round {round_number}"
    noised = log.release(
        name, lambda source: noisy(mean, lent, count, plan, source), [plan.charge(name)], plan.allowance(), draws
    )
    log.drop(f"round {round_number - out_of_reach(recipe)}")
    return {key: value for key, value in noised.items() if key != COST.name}


def noisy(mean: Message, lent: Mapping[str, Tensor], count: int, plan: Plan, draws: Draws) -> Message:
    """Return the mean of ``count`` clipped uploads with noise on their sum, in the types of what was lent."""
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


# Noise on the models and what sites release by themselves, in one account (PrivacyFace, A.3, 4).
#
# The two protect different things: ``federation.dp`` what a site's data did to the models that go down, a release
# one
# class centre. What they share is a person. Two runs are neighbours if a site has all images of one person or none
# of
# them (or, with ``replace-one``, another person's): then one class centre differs, if each is made of its own
# person's
# images and of the lent model alone, and the update of one site, by 2C at most, both updates being within C. Every
# model
# that is lent has noise on it or is the first one, so releases may depend on it. All that is told is a sequence of
# mechanisms under one relation, and composes: summed, and tightly.
#
# The promise holds against whoever sees the models and what sites told each other: users and other sites, not the
# server,
# which adds the noise and sees clipped updates. With Algorithm 1 as printed the sum is what the paper would count.


OF_A_PERSON: dict[Relation, Relation] = {"add-remove": "person", "replace-one": "person-exchanged", "paper": "paper"}
"""What neighbours are that differ in a person, by what they are where they differ in one class centre."""


@dataclass(frozen=True)
class Account:
    """The account of a recipe with both; it does not change with how the run goes, like the plan of its noise."""

    plan: Plan
    prices: Callable[[int], tuple[Charge, ...]]
    """What so many releases of a site cost."""
    delta: float
    entropy: str

    def charges(self, rounds: int) -> tuple[Charge, ...]:
        """Return what so many rounds cost the site that is asked most, under one relation."""
        times = self.plan.paid[rounds - 1] if rounds else 0
        if not times:
            return ()
        told = self.prices(times)
        relation = OF_A_PERSON[told[0].relation]
        between = replace(self.plan, clip=2 * self.plan.clip, multiplier=self.plan.multiplier / 2)
        return tuple(replace(one, relation=relation) for one in (*told, between.charge("noise on the models", times)))

    def spent(self, rounds: int) -> Spent:
        """Return what so many rounds have cost."""
        return _spent(self.charges(rounds), self.delta)

    def figures(self, rounds: int) -> dict[str, Any]:
        """Return the account for ``metrics.json``."""
        charges = self.charges(rounds)
        return {
            **asdict(self.spent(rounds)), "site": "each", "relation": sorted({one.relation for one in charges}),
            "noise": self.entropy, "account": [one.as_json() for one in charges],
        }  # fmt: skip

    def guarantee(self, rounds: int) -> str:
        """Return the text for the ledger, beside weights that so many rounds went into."""
        total, relation = self.spent(rounds), self.charges(rounds)[0].relation
        return (
            f"together with what sites released, {relation} level: ε {total.epsilon:.4g}, δ {total.delta:.3g} by their "
            f"sum, ε {total.tight_epsilon:.4g} tightly"
        )


@lru_cache(maxsize=256)
def _spent(charges: tuple[Charge, ...], delta: float) -> Spent:
    """Compose charges once: each order that goes out asks again."""
    return spent(charges, delta) if charges else Spent(0.0, 0.0, 0.0, delta)


def account_of(recipe: Recipe, method: Declared) -> Account | None:
    """Return the account of a recipe that puts noise on the models of a method whose sites release something, too."""
    plan, dp, own = plan_of(recipe), recipe.federation.dp, recipe.privacy
    prices = method.prices
    if plan is None or dp is None or prices is None:
        return None
    if own.delta is None:
        raise UserError("recipe.privacy", "names no budget; give epsilon and delta for all releases of the run")
    entropy = "derived" if "derived" in (dp.entropy, own.noise) else "system"
    return Account(plan, lambda times: prices(recipe, times), plan.delta + own.delta, entropy)


def promise_of(recipe: Recipe, method: Declared) -> Callable[[int], str]:
    """Return what is promised of weights that so many rounds went into: nothing, without noise on them."""
    plan, dp, account = plan_of(recipe), recipe.federation.dp, account_of(recipe, method)

    def promise(rounds: int) -> str:
        if plan is None or dp is None or not rounds:
            return ""
        together = [account.guarantee(rounds)] if account is not None else []
        return "; ".join([plan.guarantee(rounds, dp.entropy), *together])

    return promise


def figures_of(recipe: Recipe, method: Declared, rounds: int, told: dict[str, Any]) -> dict[str, Any]:
    """Return what ``metrics.json`` says of differential privacy; ``told`` is what the site that released most spent."""
    plan, dp, account = plan_of(recipe), recipe.federation.dp, account_of(recipe, method)
    if plan is None or dp is None:
        return told
    models = plan.figures(rounds, dp.entropy)
    return models if account is None else account.figures(rounds) | {"models": models, "releases": told}
