"""The two chains of protections, in the order of their steps.

At the site, the update is clipped, then a simulated hostile site modifies its upload, and the masks of secure
aggregation come last, because masked numbers cannot be processed further. At the server, each upload is checked against
its declaration, clipped once more and combined with the others by the recipe's rule, and noise is added to the result.
Under secure aggregation the server sees no single upload: it admits masked numbers, sums them, and adds noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.data.batches import View
from fedvisage.federation.method import Call
from fedvisage.federation.protections.combine import cast, clip_update, norm_of_update
from fedvisage.federation.protections.dp import plan_of, release_mean
from fedvisage.federation.record.releases import Releases, StatedCost, stated_cost
from fedvisage.federation.secure import protocol
from fedvisage.federation.secure.calls import with_secure_sum
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, SUMMED, VARIANCE, Schema, check, schema_of
from fedvisage.recipe import Dp, Federation, HostileSites, Recipe


class Outgoing(Protocol):
    """A step at the site: it wraps the calls of a method, and may change their declarations."""

    @property
    def name(self) -> str:
        """Return the step's name."""
        ...

    def applies_to(self, federation: Federation) -> bool:
        """Return whether a recipe requests the step."""
        ...

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with this step added after their own."""
        ...


@dataclass(frozen=True)
class RoundMean:
    """A mean of ``count`` uploads of a round, and access to the server's current weights."""

    mean: Message
    count: int
    round: int
    present: Callable[[], Message]
    releases: Releases | None


class Incoming:
    """A step at the server, on each upload or on their combination; the default changes nothing."""

    name: str = ""

    def applies_to(self, federation: Federation) -> bool:
        """Return whether a recipe requests the step."""
        raise NotImplementedError

    def each(self, upload: Message, lent: Callable[[], Message], federation: Federation) -> Message:
        """Return one site's upload for the mean; ``lent`` returns the weights that this round's sites received."""
        return upload

    def whole(self, mixed: RoundMean, recipe: Recipe) -> Message:
        """Return the mean for the model."""
        return mixed.mean


@dataclass(frozen=True)
class Admit(Incoming):
    """Checks every reply of any call by name, type, shape and value, and its stated privacy cost."""

    name: str = "admit"

    def applies_to(self, federation: Federation) -> bool:
        """Return True: every recipe needs the check."""
        return True

    def reply(self, message: Message, schema: Schema, recipe: Recipe) -> StatedCost | None:
        """Raise an error for a reply that differs from its declaration; return the stated cost of a release in it."""
        check(message, schema)
        return stated_cost(message, recipe.privacy.noise)


# Clipping of updates, the differences between uploads and lent weights, to an L2 norm.

SHRINK = 1 - 2**-14
"""Factor on a clipping target that rounding exceeded, besides the correction of the excess itself."""


@dataclass(frozen=True)
class ClipAtSite:
    """Clips the summed update before it leaves the site, for :mod:`fedvisage.federation.protections.dp`."""

    name: str = "clip"

    def applies_to(self, federation: Federation) -> bool:
        """Return whether the recipe has differential privacy of sites."""
        return federation.dp is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls; the summed one clips its update."""
        dp, plain = recipe.federation.dp, calls[SUMMED]
        assert dp is not None
        promise = f"update clipped to {dp.clip:g} at the site, no noise yet"
        parts = {part for upload in plain.uploads if upload.kind == "weights" for part in upload.parts}

        def run(site: Site, message: Message) -> Message:
            reply = {name: value.detach().cpu() for name, value in plain.run(site, message).items()}
            lent = {name: value.cpu() for name, value in site.lent.items()}
            weights = {name: value for name, value in reply.items() if name.split(".")[0] in parts}
            return reply | clip_after_rounding(
                weights, lent, _clip_bound(dp, weights, in_secret=recipe.federation.secure is not None)
            )

        uploads = tuple(
            replace(upload, guarantee=promise) if upload.kind == "weights" else upload for upload in plain.uploads
        )
        return {**calls, SUMMED: replace(plain, run=run, uploads=uploads)}


@dataclass(frozen=True)
class ClipAtServer(Incoming):
    """Clips each upload again at the server, which trusts no site: for DP-FedAvg, or as a rule with a fixed bound."""

    name: str = "clip"

    def applies_to(self, federation: Federation) -> bool:
        """Return whether the recipe has differential privacy of sites, or norm clipping with a fixed bound."""
        return _fixed_bound(federation) is not None

    def each(self, upload: Message, lent: Callable[[], Message], federation: Federation) -> Message:
        """Clip one site's update."""
        bound = _fixed_bound(federation)
        assert bound is not None
        return clip_update(upload, lent(), bound)


def _fixed_bound(federation: Federation) -> float | None:
    """Return the fixed bound of a recipe, which does not depend on the uploads."""
    if federation.dp is not None:
        return federation.dp.clip
    return federation.combine.bound if federation.combine.rule == "norm-clip" else None


def clip_after_rounding(upload: Message, base: Mapping[str, Tensor], bound: float) -> Message:
    """Return an upload in its own types whose update stays within the bound after rounding to these types."""
    types, target = {name: value.dtype for name, value in upload.items()}, bound
    scaled = upload
    while (norm := norm_of_update(scaled, base)) > bound:
        target *= 1 if scaled is upload else SHRINK * bound / norm
        scaled = {name: cast(value, types[name]) for name, value in clip_update(upload, base, target).items()}
    return scaled


def _clip_bound(dp: Dp, weights: Message, *, in_secret: bool) -> float:
    """Return ``clip`` less the largest norm that fixed-point rounding can add under secure aggregation."""
    if not in_secret:
        return dp.clip
    rounding = 2.0**-protocol.FRACTION * math.sqrt(sum(value.numel() for value in weights.values()))
    if dp.clip <= 2 * rounding:
        raise UserError("recipe.federation.dp.clip", f"must be above {2 * rounding:.3g} with federation.secure")
    return dp.clip - rounding


@dataclass(frozen=True)
class Combine(Incoming):
    """Combines the uploads: by the mean, a robust rule, or a secure sum that reveals no single upload.

    The work is in :meth:`fedvisage.federation.server.Server.reduce`; here the step has its place in the chain.
    """

    name: str = "combine"

    def applies_to(self, federation: Federation) -> bool:
        """Return True: every recipe combines uploads."""
        return True


@dataclass(frozen=True)
class MaskUpload:
    """Masks the summed upload; the masks cancel in the sum, so the server learns only the sum."""

    name: str = "mask"

    def applies_to(self, federation: Federation) -> bool:
        """Return whether the recipe has secure aggregation."""
        return federation.secure is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with the summed one masked, and the calls that exchange keys and shares."""
        return with_secure_sum(calls, schema_of(calls[SUMMED].uploads, recipe, net), recipe)


@dataclass(frozen=True)
class Noise(Incoming):
    """Adds Gaussian noise to the mean of clipped updates, charged and stored before any site sees the result."""

    name: str = "noise"

    def applies_to(self, federation: Federation) -> bool:
        """Return whether the recipe has differential privacy of sites with noise, not clipping alone."""
        return federation.dp is not None and federation.dp.noise != 0

    def whole(self, mixed: RoundMean, recipe: Recipe) -> Message:
        """Return the mean with noise."""
        plan = plan_of(recipe)
        assert plan is not None
        assert mixed.releases is not None, "a server without a disk releases nothing"
        return release_mean(mixed.mean, mixed.present(), mixed.count, recipe, plan, mixed.round, mixed.releases)


# Simulated hostile sites.


class FlippedLabels(View):
    """A view with exchanged labels: attacks count as bona fide, bona fide images as attacks."""

    @cached_property
    def labels(self) -> npt.NDArray[np.uint8]:
        """Return the exchanged labels."""
        return np.asarray(1 - View(self.slices).labels, dtype=np.uint8)


@dataclass(frozen=True)
class Poison:
    """Makes hostile sites of a simulation spoil their uploads; the other sites are unchanged.

    Spoiled uploads are well formed and pass admission. The attacks:

    - ``sign-flip``: the lent weights minus the site's own update times a factor, which undoes the others' progress.
    - ``scaling``: the lent weights plus the update times a factor, so that the site's model outweighs the others'.
    - ``label-flip``: the site trains honestly on exchanged labels.

    The first two change all floating-point tensors. They keep variances non-negative and values within the range that
    admission allows, like an attacker who knows this range.
    """

    name: str = "poison"

    def applies_to(self, federation: Federation) -> bool:
        """Return whether the recipe names hostile sites."""
        return federation.poisoned is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with the attacks of hostile sites."""
        settings, honest = recipe.federation.poisoned, calls[SUMMED].run
        assert settings is not None
        hostile = flip_labels(honest) if settings.how == "label-flip" else scale_update(honest, settings)

        def run(site: Site, message: Message) -> Message:
            return (hostile if site.name in settings.sites else honest)(site, message)

        return {**calls, SUMMED: replace(calls[SUMMED], run=run)}


def flip_labels(honest: Callable[[Site, Message], Message]) -> Callable[[Site, Message], Message]:
    """Return the call of a site that trains on swapped labels."""

    def run(site: Site, message: Message) -> Message:
        data = site.data
        site.data = FlippedLabels(data.slices)
        try:
            return honest(site, message)
        finally:
            site.data = data

    return run


def scale_update(
    honest: Callable[[Site, Message], Message], settings: HostileSites
) -> Callable[[Site, Message], Message]:
    """Return the call of a site that reverses or scales its update."""
    factor = -settings.factor if settings.how == "sign-flip" else settings.factor

    def run(site: Site, message: Message) -> Message:
        lent = {name: value.cpu() for name, value in message.items()}
        reply = honest(site, message)
        for name, value in reply.items():
            if name in lent and value.is_floating_point():
                least = 0.0 if name.endswith(VARIANCE) else -LARGEST_MAGNITUDE
                reply[name] = (lent[name] + factor * (value.cpu() - lent[name])).clamp(least, LARGEST_MAGNITUDE)
        return reply

    return run


OUTGOING: tuple[Outgoing, ...] = (ClipAtSite(), Poison(), MaskUpload())
ADMIT = Admit()
INCOMING: tuple[Incoming, ...] = (ADMIT, ClipAtServer(), Combine(), Noise())


def protect_calls(calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> Mapping[str, Call]:
    """Return a method's calls wrapped in the site's chain."""
    for step in OUTGOING:
        if step.applies_to(recipe.federation):
            calls = step.around(calls, recipe, net)
    return calls


def server_steps(federation: Federation) -> tuple[Incoming, ...]:
    """Return the server's steps for a recipe."""
    return tuple(step for step in INCOMING if step.applies_to(federation))


def step_names(federation: Federation) -> dict[str, list[str]]:
    """Return the names of a recipe's steps at the site and at the server, in order."""
    return {
        "site": [step.name for step in OUTGOING if step.applies_to(federation)],
        "server": [step.name for step in server_steps(federation)],
    }
