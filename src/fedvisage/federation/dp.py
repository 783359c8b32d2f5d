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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedvisage.federation.participation import asked
from fedvisage.federation.record.checkpoint import out_of_reach
from fedvisage.federation.record.releases import COST, Allowance, Releases
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import VARIANCE
from fedvisage.privacy.accountant import Charge, tight_epsilon
from fedvisage.privacy.draws import DerivedDraws, Draws, SystemDraws
from fedvisage.privacy.gaussian import Budget, noise, standard_deviation
from fedvisage.recipe import Recipe
from fedvisage.streams import torch_rng

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
