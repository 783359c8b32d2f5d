"""Clip and noise on what split learning sends of single images: a guarantee for an image, over all that is ever sent.

Each image's tokens, and the gradient by what the head saw of it, are cut to a length and get Gaussian noise. Neighbours
are two sites of which one has another image, with another label, in the place of one of the other's. Then only that
image's rows differ, by at most twice the length: sensitivity 2C. This holds because nothing else depends on an image:

- The site's parts stay as the server lent them. A tokenizer that had learned from an image would carry it into the
  tokens of all others, where the noise on its own row would not hide it. Server parts learn as ever: from noisy values.
- Batches are shuffled, never balanced by label, so an image's place does not tell its class. No training loss leaves.
- An image is once in every pass over the data. So a pass costs one release of tokens and one of gradients, whatever
  the number of batches; all passes compose (``privacy/accountant``). No amplification by sampling is claimed.

The noise follows from the budget (``privacy.epsilon``, ``delta``), which is shared equally among passes and kinds: by
tight composition of Gaussians with ``privacy.count: tight``, by sums of ε and δ otherwise. Held-out images are not
covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.base.errors import UserError
from fedvisage.federation.batch import epoch_length, round_length
from fedvisage.federation.privacy.accountant import Charge, Count, tight_epsilon
from fedvisage.federation.privacy.mechanisms import Budget, Draws, noise, standard_deviation
from fedvisage.federation.record.store import out_of_reach
from fedvisage.federation.site import Site, TrainingBroke
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import ABSURD
from fedvisage.recipe import MethodOptions, Recipe, Section

KINDS = ("tokens", "gradient")
SLACK = 1 - 1e-6
"""Share of the budget that is used: the noise is found by a search, whose last digits must not exceed it."""
FAR = 8.0
"""Standard deviations beyond which no noise will be drawn."""


class Clip(Section):
    """The greatest length (L2) of an image's tokens together, and of its gradient."""

    tokens: float = Field(gt=0)
    """The length to which an image's tokens are cut before they get noise."""
    gradient: float = Field(gt=0)
    """The same of its gradient."""


class Options(MethodOptions):
    """Whether what is sent of images gets noise."""

    leakage: Clip | None = None
    """What is sent of an image is cut and noised; needs ``privacy.epsilon``."""


@dataclass(frozen=True)
class Guard:
    """The noise of one kind of release: the length, σ, and what a release in a pass costs."""

    kind: str
    length: float
    sigma: float
    price: Budget

    def charges(self, name: str, number: int) -> tuple[Charge, Charge]:
        """Return the cost of a pass over the data, to be paid with its first batch, and the batch, which adds nothing.

        An image is in one batch of a pass, so all its batches together cost what one of them does.
        """
        whole = Charge(
            f"pass {number}, {self.kind}", "gaussian", self.price.epsilon, self.price.delta, "image", 2 * self.length,
            self.sigma,
        )  # fmt: skip
        return whole, replace(whole, release=name, epsilon=0.0, delta=0.0, times=0)

    def noised(self, rows: Tensor, draws: Draws) -> Tensor:
        """Cut each image's values to the length and add noise, both in float64."""
        return cut(rows, self.length) + noise(tuple(rows.shape), self.sigma, draws)


def cut(rows: Tensor, length: float) -> Tensor:
    """Return each row, the first dimension's, shortened to a length if it is longer; one that is not finite as zeros.

    To fail over it would tell, for nothing, of an image on which a network that the server lent overflows.
    """
    flat = rows.detach().double().cpu().reshape(len(rows), -1)
    flat = torch.where(flat.isfinite().all(dim=1, keepdim=True), flat, 0.0)
    factor = (length / flat.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)
    shorter: Tensor = flat * factor[:, None]
    return shorter.reshape(rows.shape)


def guard_of(clip: Clip, kind: str, budget: Budget, passes: int, count: Count) -> Guard:
    """Return the least noise with which all passes of both kinds together keep the budget."""
    releases = len(KINDS) * passes
    each = Budget(SLACK * budget.epsilon / releases, SLACK * budget.delta / releases)
    length = float(getattr(clip, kind))
    if count == "sum":
        return Guard(kind, length, standard_deviation(each, 2 * length), each)
    sigma = math.sqrt(releases) * standard_deviation(Budget(SLACK * budget.epsilon, budget.delta), 2 * length)
    alone = Charge("one", "gaussian", 0.0, 0.0, "image", 2 * length, sigma)
    return Guard(kind, length, sigma, Budget(tight_epsilon([alone], each.delta), each.delta))


def protected(recipe: Recipe) -> bool:
    """Say whether the recipe wants noise; refuse settings under which its guarantee would mean nothing."""
    if recipe.options(Options).leakage is None:
        return False
    if recipe.privacy.epsilon is None:
        raise UserError("recipe.method.leakage", "needs a budget: give privacy.epsilon and privacy.delta")
    if recipe.training.sampling != "shuffled":
        raise UserError("recipe.training.sampling", "must be shuffled with method.leakage: a batch that is balanced by "
                        "label tells labels by its order")  # fmt: skip
    return True


def passes_of(recipe: Recipe, site: str, images: int) -> int:
    """Return how many passes a run makes over so many images of a site, the last of which may not be whole."""
    batches = recipe.training.rounds * round_length(recipe, site, images)
    return math.ceil(batches / epoch_length(recipe, site, images))


def release(site: Site, kind: str, rows: Tensor, pack: Callable[[Tensor], Message]) -> Message:
    """Send rows of images with noise, or return the stored answer; ``pack`` says in which numbers it travels."""
    recipe = site.recipe
    clip, asked = recipe.options(Options).leakage, recipe.privacy
    assert clip is not None
    assert asked.epsilon is not None
    assert asked.delta is not None
    passes = passes_of(recipe, site.name, len(site.data))
    guard = guard_of(clip, kind, Budget(asked.epsilon, asked.delta), passes, asked.count)
    if guard.length + FAR * guard.sigma > ABSURD:
        raise TrainingBroke(f"the budget asks for noise of σ {guard.sigma:.3g} on {kind}, more than a reply may hold")
    number = (site.round - 1) * site.batches_per_round + site.taken
    cost = guard.charges(named(number, kind), (number - 1) // site.batches_per_epoch + 1)
    answer = site.release(named(number, kind), lambda draws: pack(guard.noised(rows, draws).float()), cost)
    site.forget(named(number - out_of_reach(recipe) * site.batches_per_round, kind))
    return answer


def named(number: int, kind: str) -> str:
    """Return the name of what is sent of a batch; the number, counted from the run's beginning, says which images."""
    return f"batch {number}, {kind}"
