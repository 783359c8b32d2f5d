"""Clipping and noise for the per-image values of split learning: a guarantee per image over all releases of a run.

Each image's tokens, and the gradient with respect to the head's input for that image, are clipped to a length and
receive Gaussian noise. Two sites are neighbours if one has a different image, with a different label, in place of one
of the other's images. Then only that image's rows differ, by at most twice the length: sensitivity 2C. This holds
because nothing else depends on an image:

- The site's parts stay as the server lent them. A tokenizer that had learned from an image would carry it into the
  tokens of all others, where the noise on its own row would not hide it. Server parts learn as usual: from noisy
  values.
- Batches are shuffled, never balanced by label, so an image's place does not reveal its class. No training loss leaves
  the site.
- An image occurs once in every pass over the data. A pass therefore costs one release of tokens and one of gradients,
  whatever the number of batches; all passes compose (:mod:`fedvisage.federation.privacy.accountant`). No amplification
  by sampling is claimed.

The noise follows from the budget (``privacy.epsilon``, ``delta``), which is divided equally among passes and kinds: by
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
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE
from fedvisage.recipe import MethodOptions, Recipe, Section

KINDS = ("tokens", "gradient")
SLACK = 1 - 1e-6
"""Share of the budget in use: a numerical search finds the noise, and its last digits must not exceed the budget."""
FAR = 8.0
"""Number of standard deviations that noise is assumed never to exceed."""


class ClipLengths(Section):
    """The maximum length (L2) of an image's tokens together, and of its gradient."""

    tokens: float = Field(gt=0)
    """Length to which an image's tokens are clipped before they receive noise."""
    gradient: float = Field(gt=0)
    """Length to which an image's gradient is clipped before it receives noise."""


class Options(MethodOptions):
    """Protection of the values that a site sends per image."""

    leakage: ClipLengths | None = None
    """Clips and adds noise to the values of each image; needs ``privacy.epsilon``."""


@dataclass(frozen=True)
class ReleaseNoise:
    """The noise of one kind of release: the length, σ, and the cost of a release in one pass."""

    kind: str
    length: float
    sigma: float
    price: Budget

    def charges(self, name: str, number: int) -> tuple[Charge, Charge]:
        """Return the cost of a pass over the data, due with its first batch, and the free charge of the batch itself.

        An image is in one batch of a pass, so all batches of a pass together cost as much as one.
        """
        full_pass = Charge(
            f"pass {number}, {self.kind}",
            "gaussian",
            self.price.epsilon,
            self.price.delta,
            "image",
            2 * self.length,
            self.sigma,
        )
        return full_pass, replace(full_pass, release=name, epsilon=0.0, delta=0.0, times=0)

    def add_noise(self, rows: Tensor, draws: Draws) -> Tensor:
        """Clip each image's values to the length and add noise, both in float64."""
        return clip_rows(rows, self.length) + noise(tuple(rows.shape), self.sigma, draws)


def clip_rows(rows: Tensor, length: float) -> Tensor:
    """Return each row (first dimension) clipped to a length; a row with non-finite values becomes zeros.

    Failing on such a row would reveal, without a charge, that an image overflows in a network that the server lent.
    """
    flat = rows.detach().double().cpu().reshape(len(rows), -1)
    flat = torch.where(flat.isfinite().all(dim=1, keepdim=True), flat, 0.0)
    factor = (length / flat.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)
    shorter: Tensor = flat * factor[:, None]
    return shorter.reshape(rows.shape)


def release_noise_of(clip: ClipLengths, kind: str, budget: Budget, passes: int, count: Count) -> ReleaseNoise:
    """Return the smallest noise with which all passes of both kinds together stay within the budget."""
    releases = len(KINDS) * passes
    share = Budget(SLACK * budget.epsilon / releases, SLACK * budget.delta / releases)
    length = float(getattr(clip, kind))
    # In tight composition, n releases with noise √n σ cost as much as one release with σ.
    if count == "sum":
        return ReleaseNoise(kind, length, standard_deviation(share, 2 * length), share)
    sigma = math.sqrt(releases) * standard_deviation(Budget(SLACK * budget.epsilon, budget.delta), 2 * length)
    single = Charge("one", "gaussian", 0.0, 0.0, "image", 2 * length, sigma)
    return ReleaseNoise(kind, length, sigma, Budget(tight_epsilon([single], share.delta), share.delta))


def needs_noise(recipe: Recipe) -> bool:
    """Return True if the recipe requires noise; reject settings that would void its guarantee."""
    if recipe.options(Options).leakage is None:
        return False
    if recipe.privacy.epsilon is None:
        raise UserError("recipe.method.leakage", "needs a budget: give privacy.epsilon and privacy.delta")
    if recipe.training.sampling != "shuffled":
        raise UserError(
            "recipe.training.sampling",
            "must be shuffled with method.leakage: the order of a batch balanced by label reveals the labels",
        )
    return True


def passes_of(recipe: Recipe, site: str, images: int) -> int:
    """Return the number of passes of a run over this many images of a site; the last one may be partial."""
    batches = recipe.training.rounds * round_length(recipe, site, images)
    return math.ceil(batches / epoch_length(recipe, site, images))


def release(site: Site, kind: str, rows: Tensor, pack: Callable[[Tensor], Message]) -> Message:
    """Send rows of images with noise, or return the stored reply; ``pack`` encodes them for the wire."""
    recipe = site.recipe
    limits, privacy = recipe.options(Options).leakage, recipe.privacy
    assert limits is not None
    assert privacy.epsilon is not None
    assert privacy.delta is not None
    passes = passes_of(recipe, site.name, len(site.data))
    guard = release_noise_of(limits, kind, Budget(privacy.epsilon, privacy.delta), passes, privacy.count)
    if guard.length + FAR * guard.sigma > LARGEST_MAGNITUDE:
        raise TrainingFailed(f"the budget requires noise of σ {guard.sigma:.3g} on {kind}, more than a reply may hold")
    number = (site.round - 1) * site.batches_per_round + site.batches_taken
    cost = guard.charges(release_name(number, kind), (number - 1) // site.batches_per_epoch + 1)
    return site.release(
        release_name(number, kind),
        lambda draws: pack(guard.add_noise(rows, draws).float()),
        cost,
        # A resumed run receives the stored reply again; one that no checkpoint can request any more is deleted.
        forget=release_name(number - out_of_reach(recipe) * site.batches_per_round, kind),
    )


def release_name(number: int, kind: str) -> str:
    """Return the name of a batch's release; the number counts from the start of the run and identifies the images."""
    return f"batch {number}, {kind}"
