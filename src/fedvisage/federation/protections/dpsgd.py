"""DP-SGD per person: a site draws people, clips the gradient of each, and adds noise to their sum.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang, "Deep Learning with Differential
Privacy", CCS 2016, Algorithm 1, with a person in place of an example. In a step, each person i of the site takes part
with probability q, independently. The gradient g_i of the person's mean loss is clipped, and

    g = (Σ_i g_i · min(1, C / ‖g_i‖) + z C N(0, I)) / L

is the gradient that the optimizer receives. Two runs are neighbours if they differ in all images of one person at one
site, added or removed. So L, q and the number of steps are constants of the recipe, not counts of the site. A visit
releases the weights after its steps, which only process the noisy sums.

For the sum to change by at most C, the gradient of a person must not depend on other people. Augmentation, the choice
of images, and library draws such as dropout have a stream of their own per person and step.

Deviations from the paper: L is a setting; privacy loss distributions replace the moments accountant.
``docs/decisions/0051-privacy-per-person.md`` has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng, seed_global_rng
from fedvisage.federation.batch import Batch, backpropagate_parts
from fedvisage.federation.method import Call
from fedvisage.federation.privacy.accountant import Charge, sampled_noise_multiplier, tight_epsilon
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, noise
from fedvisage.federation.protections.dp import most_visits
from fedvisage.federation.record.releases import Allowance
from fedvisage.federation.record.store import out_of_reach
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, SUMMED
from fedvisage.nn import optimizers
from fedvisage.nn.batchnorm import batchnorms
from fedvisage.recipe import Recipe
from fedvisage.recipe.training import PersonPrivacy

PLACE = "recipe.training.privacy"
LEAST_EPSILON = 1e-9
"""Least ε of a budget; people who are hardly ever drawn cost nothing at some δ."""
DRAWS = "draws of people and noise"
"""Key of the source of random numbers among the values that a visit holds."""
TRAININGS = "trainings on people"
"""Key of the number of times that a visit has trained on people."""
KEPT = "kept/"
"""Prefix of the site's private state in a stored visit."""


@dataclass(frozen=True)
class StepNoise:
    """The noise of a run's steps, and the cost of visits, which do not depend on the course of the run."""

    clip: float
    multiplier: float
    rate: float
    steps: int
    """Number of steps per visit."""
    visits: int
    """Number of visits of the site that is selected most."""
    delta: float

    def charge(self, name: str, visits: int = 1) -> Charge:
        """Return the cost of visits; each has the ε at an even share of δ, so that their sum is a guarantee, too."""
        steps, share, sigma = visits * self.steps, self.delta / self.visits, self.multiplier * self.clip
        charge = Charge(name, "sampled-gaussian", 0.0, visits * share, "person", self.clip, sigma, steps, self.rate)
        return replace(charge, epsilon=tight_epsilon([charge], charge.delta))

    def allowance(self) -> Allowance:
        """Return the budget of the site's log: the cost of all visits."""
        epsilon = tight_epsilon([self.charge("all visits", self.visits)], self.delta)
        return Allowance(Budget(max(epsilon, LEAST_EPSILON), self.delta), "tight")


def step_noise(recipe: Recipe) -> StepNoise | None:
    """Return the noise of a recipe's steps, or None without any."""
    settings = recipe.training.privacy
    if settings is None or settings.noise == 0:
        return None
    assert settings.delta is not None
    steps, visits, multiplier = recipe.training.local.batches or 0, most_visits(recipe)[-1], settings.noise
    if multiplier is None:
        assert settings.epsilon is not None
        multiplier = sampled_noise_multiplier(settings.epsilon, settings.delta, settings.rate, visits * steps)
    if multiplier * settings.clip > LARGEST_MAGNITUDE:
        fault = f"{settings.clip:g} requires noise of σ {multiplier * settings.clip:.3g}, more than a reply may hold"
        raise UserError(f"{PLACE}.clip", f"{fault}; lower it, or raise epsilon")
    return StepNoise(settings.clip, multiplier, settings.rate, steps, visits, settings.delta)


def trains_on_people(recipe: Recipe) -> bool:
    """Return whether steps draw people, so that a site sends neither its number of images nor its training loss."""
    return recipe.training.privacy is not None


def adds_noise(recipe: Recipe) -> bool:
    """Return whether the weights that a site sends are a release with noise."""
    return recipe.training.privacy is not None and recipe.training.privacy.noise != 0


# A site's local work.


def train_on_people(site: Site, loss: Callable[[Site, Batch], Tensor]) -> None:
    """Take one round's steps, each down the noisy sum of the clipped gradients of the people drawn for it."""
    recipe = site.recipe
    settings, limit = recipe.training.privacy, recipe.training.micro_batch
    assert settings is not None
    noised = step_noise(recipe)
    sigma = 0.0 if noised is None else noised.multiplier * settings.clip
    site.held[TRAININGS] = site.held.get(TRAININGS, 0) + 1
    draws = site.held.get(DRAWS) or DerivedDraws(site.rng("people"))
    optimizer = site.optimizer(*site.net)
    weights = [weight for weight in site.net.parameters() if weight.requires_grad]
    names, persons = np.unique(site.data.subjects, return_inverse=True)

    def value(batch: Batch) -> Tensor:
        with site.autocast():
            return loss(site, batch)

    def gradient_of(number: int, person: int) -> list[Tensor | None]:
        """Return the gradient of a person's mean loss in a step, which depends on no other person."""
        stream = (site.name, "person", number, str(names[person]))
        images = np.flatnonzero(persons == person).astype(np.int64)
        if len(images) > settings.images:
            images = np.sort(numpy_rng(recipe.runtime.seed, *stream).choice(images, settings.images, replace=False))
        optimizer.zero_grad(set_to_none=True)
        with seed_global_rng(recipe.runtime.seed, *stream, "library draws", device=site.compute.device):
            backpropagate_parts(value, site.images_at(images, *stream[1:]).parts(limit))
        return [weight.grad for weight in weights]

    for step in range(site.batches_per_round):
        site.on_batch(site.name, step, site.batches_per_round)
        gradients = partial(gradient_of, (site.round - 1) * site.batches_per_round + step)
        total = noisy_sum(weights, len(names), gradients, settings, sigma, draws)
        for weight, summed in zip(weights, total, strict=True):
            weight.grad = (summed / settings.people).to(weight.dtype)
        optimizers.step(optimizer, recipe.training.optimizer.clip_norm)


def noisy_sum(
    weights: Sequence[Tensor],
    people: int,
    gradients: Callable[[int], Sequence[Tensor | None]],
    settings: PersonPrivacy,
    sigma: float,
    draws: Draws,
) -> list[Tensor]:
    """Return the noisy sum of the clipped gradients of the people drawn for one step, in float64."""
    total = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
    for person in np.flatnonzero((draws.uniform(people) < settings.rate).numpy()):
        add_clipped(total, gradients(int(person)), settings.clip)
    for summed in total if sigma else ():
        summed += noise(tuple(summed.shape), sigma, draws).to(summed.device)
    return total


def add_clipped(total: Sequence[Tensor], gradients: Sequence[Tensor | None], bound: float) -> None:
    """Add a person's gradient in float64, scaled down to an L2 norm of the bound.

    A gradient that is not finite counts as zero. A failure would reveal, without a charge, that a person's images
    overflow in a network that the server lent.
    """
    present = [(summed, gradient) for summed, gradient in zip(total, gradients, strict=True) if gradient is not None]
    squares = [gradient.double().square().sum() for _, gradient in present]
    norm = math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
    if not math.isfinite(norm):
        return
    for summed, gradient in present:
        summed.add_(gradient.double(), alpha=min(1.0, bound / max(norm, bound)))


# The step of the site's chain that makes a visit's result a release.


def release_weights(calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> Mapping[str, Call]:
    """Charge a visit before it trains, store its weights before they are sent, and send stored weights again."""
    check_norms(recipe, net)
    plain, noised = calls[SUMMED], step_noise(recipe)

    def train(site: Site, message: Message) -> Message:
        reply = plain.run(site, message)
        return {name: tensor for name, tensor in reply.items() if name not in ("examples", "loss")}

    def release(site: Site, message: Message) -> Message:
        assert noised is not None

        def mechanism(draws: Draws) -> Message:
            site.held[DRAWS] = draws
            reply = train(site, message)
            if site.held.get(TRAININGS) != 1:
                fault = f"adds noise in averaging's own local work, once, and {recipe.method.name} has another"
                raise UserError(PLACE, f"{fault}; leave it out")
            return reply | {f"{KEPT}{name}": value for name, value in site.private_state().items()}

        name, past = _name(site.round), _name(site.round - out_of_reach(recipe))
        stored = site.release(name, mechanism, [noised.charge(name)], noised.allowance(), forget=past)
        site.kept.update(under(KEPT, stored))  # a repeated visit does not train
        return {name: value for name, value in stored.items() if not name.startswith(KEPT)}

    return {**calls, SUMMED: replace(plain, run=train if noised is None else release)}


def _name(number: int) -> str:
    return f"round {number}, weights"


def check_norms(recipe: Recipe, net: nn.ModuleDict) -> None:
    """Refuse BatchNorm in training mode, because the gradient of a person would depend on other people."""
    if recipe.training.statistics != "frozen" and any(layer.training for layer in batchnorms(net)):
        raise UserError(
            PLACE,
            "excludes BatchNorm, which normalises each person by others and keeps statistics without noise; choose a "
            "network without it or network.norm: group, or set training.statistics: frozen",
        )
