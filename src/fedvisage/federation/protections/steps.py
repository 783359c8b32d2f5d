"""The two chains of protections, in the order in which they are taken.

At the site: an update is clipped; a simulated hostile site spoils what it sends after that, as one would; and last the
masks of secure aggregation go over what is left, since nothing can be done to numbers under masks. At the server: each
upload is admitted against its declaration, clipped once more, combined with the others by the recipe's rule, and noise
is added to what they came to. Under secure aggregation the server sees no single upload: it admits masked numbers, adds
them up, and only the noise is left for it to do.
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
from fedvisage.federation.declared import Call
from fedvisage.federation.protections.combine import Combination, cast, clipped, combination_of, norm_of_update
from fedvisage.federation.protections.dp import plan_of, released
from fedvisage.federation.record.releases import Releases, Told, told
from fedvisage.federation.secure import protocol
from fedvisage.federation.secure.calls import secured
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import ABSURD, SUMMED, VARIANCE, Schema, check, schema_of
from fedvisage.recipe import Dp, Federation, Poisoned, Recipe

# What a protection is: one step of the site's chain, or one of the server's.


class Outgoing(Protocol):
    """A step at the site: it stands around the calls of a method, and may change what they declare."""

    @property
    def name(self) -> str:
        """The word for it."""
        ...

    def wanted(self, federation: Federation) -> bool:
        """Tell whether a recipe asks for it."""
        ...

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with this step taken after what they did before."""
        ...


@dataclass(frozen=True)
class Mixed:
    """A mean of so many uploads of a round, and what the server's weights are meanwhile."""

    mean: Message
    count: int
    round: int
    present: Callable[[], Message]
    releases: Releases | None


class Incoming:
    """A step at the server: on each upload, or on what they came to. Unless said, it changes nothing."""

    name: str = ""

    def wanted(self, federation: Federation) -> bool:
        """Tell whether a recipe asks for it."""
        raise NotImplementedError

    def each(self, upload: Message, lent: Callable[[], Message], federation: Federation) -> Message:
        """Return one site's upload as it goes into the mean; ``lent`` returns what the sites of this round got."""
        return upload

    def whole(self, mixed: Mixed, recipe: Recipe) -> Message:
        """Return the mean as it goes into the model."""
        return mixed.mean


# Admission: nothing that differs from its declaration goes any further.


@dataclass(frozen=True)
class Admit(Incoming):
    """Every reply, whatever the call, is checked by name, type, shape and value, and so is what it says it cost."""

    name: str = "admit"

    def wanted(self, federation: Federation) -> bool:
        """Always."""
        return True

    def reply(self, message: Message, schema: Schema, recipe: Recipe) -> Told | None:
        """Refuse a reply that does not fit; return what a release in it is said to have cost."""
        check(message, schema)
        return told(message, recipe.privacy.noise)


# Clipping of updates: at the site before anything leaves it, and at the server, which takes nothing on trust.
#
# The update of a site is what it sends less what it was lent; its L2 norm is cut to a bound. At the site that is a
# part of DP-FedAvg (see :mod:`fedvisage.federation.protections.dp`), at the server also a robust rule with a bound
# of its own.


SHRINK = 1 - 2**-14
"""What is left of a target that rounding overshot, beside the overshoot itself."""


@dataclass(frozen=True)
class ClipAtSite:
    """The summed update is clipped before it leaves the site."""

    name: str = "clip"

    def wanted(self, federation: Federation) -> bool:
        """With differential privacy of sites."""
        return federation.dp is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with the summed one's update clipped."""
        dp, plain = recipe.federation.dp, calls[SUMMED]
        assert dp is not None
        promise = f"update clipped to {dp.clip:g} at the site, no noise yet"
        parts = {part for one in plain.uploads if one.kind == "weights" for part in one.parts}

        def run(site: Site, message: Message) -> Message:
            reply = {name: value.detach().cpu() for name, value in plain.run(site, message).items()}
            lent = {name: value.cpu() for name, value in site.lent.items()}
            weights = {name: value for name, value in reply.items() if name.split(".")[0] in parts}
            return reply | within(weights, lent, _bound(dp, weights, in_secret=recipe.federation.secure is not None))

        uploads = tuple(replace(one, guarantee=promise) if one.kind == "weights" else one for one in plain.uploads)
        return {**calls, SUMMED: replace(plain, run=run, uploads=uploads)}


@dataclass(frozen=True)
class ClipAtServer(Incoming):
    """Each upload is clipped again at the server, to the bound that the recipe gives."""

    name: str = "clip"

    def wanted(self, federation: Federation) -> bool:
        """With differential privacy of sites, or norm clipping to a given bound."""
        return _given(federation) is not None

    def each(self, upload: Message, lent: Callable[[], Message], federation: Federation) -> Message:
        """Clip one site's update."""
        bound = _given(federation)
        assert bound is not None
        return clipped(upload, lent(), bound)


def _given(federation: Federation) -> float | None:
    """Return the bound that is known before the uploads are."""
    if federation.dp is not None:
        return federation.dp.clip
    return federation.combine.bound if federation.combine.rule == "norm-clip" else None


def within(upload: Message, base: Mapping[str, Tensor], bound: float) -> Message:
    """Return an upload in its own types whose update is no longer than the bound, also after rounding to them."""
    types, target = {name: value.dtype for name, value in upload.items()}, bound
    scaled = upload
    while (norm := norm_of_update(scaled, base)) > bound:
        target *= 1 if scaled is upload else SHRINK * bound / norm
        scaled = {name: cast(value, types[name]) for name, value in clipped(upload, base, target).items()}
    return scaled


def _bound(dp: Dp, weights: Message, *, in_secret: bool) -> float:
    """Return the norm that is left of ``clip`` when fixed point may still round each number."""
    if not in_secret:
        return dp.clip
    rounding = 2.0**-protocol.FRACTION * math.sqrt(sum(value.numel() for value in weights.values()))
    if dp.clip <= 2 * rounding:
        raise UserError("recipe.federation.dp.clip", f"must be above {2 * rounding:.3g} with federation.secure")
    return dp.clip - rounding


# Combining: the sites' uploads become one, by the recipe's rule or in a sum that shows no single one.


@dataclass(frozen=True)
class Combine(Incoming):
    """The mean, a robust rule (``federation/robust``) or a secure sum (``federation/secure``)."""

    name: str = "combine"

    def wanted(self, federation: Federation) -> bool:
        """Always."""
        return True

    def begin(self, federation: Federation, lent: Callable[[], Message]) -> Combination:
        """Return what uploads that are seen are folded into; ``lent`` returns what the sites of this round got."""
        return combination_of(federation, lent)


# Masks of secure aggregation over what a site sends: the server learns the sum and nothing else.


@dataclass(frozen=True)
class Mask:
    """The summed upload goes under masks that cancel in the sum."""

    name: str = "mask"

    def wanted(self, federation: Federation) -> bool:
        """With secure aggregation."""
        return federation.secure is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with the summed one masked, and those that exchange keys and shares."""
        return secured(calls, schema_of(calls[SUMMED].uploads, recipe, net), recipe)


# Noise on the mean of clipped updates: differential privacy of sites (see :mod:`fedvisage.federation.protections.dp`).


@dataclass(frozen=True)
class Noise(Incoming):
    """Gaussian noise, charged and stored before anybody sees the result."""

    name: str = "noise"

    def wanted(self, federation: Federation) -> bool:
        """With differential privacy of sites, unless it is clipping alone."""
        return federation.dp is not None and federation.dp.noise != 0

    def whole(self, mixed: Mixed, recipe: Recipe) -> Message:
        """Return the mean with noise on it."""
        plan = plan_of(recipe)
        assert plan is not None
        assert mixed.releases is not None, "a server without a disk releases nothing"
        return released(mixed.mean, mixed.present(), mixed.count, recipe, plan, mixed.round, mixed.releases)


# Simulated hostile sites: what they send is well formed and passes admission, and is meant to spoil the model.
#
# - ``sign-flip``: what was lent less the site's own update, times a factor: the others' progress is undone.
# - ``scaling``: what was lent plus the update times a factor: the site's own model outweighs the others'.
# - ``label-flip``: the site trains honestly on data whose bona fide images are called attacks and the reverse.
#
# The first two change all floating-point tensors. Variances are kept from falling below zero and values from leaving
# the
# range that admission allows, as an attacker would who knows it.


class Flipped(View):
    """A view that calls attacks bona fide, and bona fide images attacks."""

    @cached_property
    def labels(self) -> npt.NDArray[np.uint8]:
        """Labels, exchanged."""
        return np.asarray(1 - View(self.slices).labels, dtype=np.uint8)


@dataclass(frozen=True)
class Poison:
    """Hostile sites of a simulation spoil what they send; the others do as ever."""

    name: str = "poison"

    def wanted(self, federation: Federation) -> bool:
        """Where the recipe names hostile sites."""
        return federation.poisoned is not None

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls as hostile sites carry them out."""
        settings, honest = recipe.federation.poisoned, calls[SUMMED].run
        assert settings is not None
        hostile = label_flip(honest) if settings.how == "label-flip" else moved(honest, settings)

        def run(site: Site, message: Message) -> Message:
            return (hostile if site.name in settings.sites else honest)(site, message)

        return {**calls, SUMMED: replace(calls[SUMMED], run=run)}


def label_flip(honest: Callable[[Site, Message], Message]) -> Callable[[Site, Message], Message]:
    """Return the turn of a site that trains on exchanged labels."""

    def run(site: Site, message: Message) -> Message:
        data = site.data
        site.data = Flipped(data.slices)
        try:
            return honest(site, message)
        finally:
            site.data = data

    return run


def moved(honest: Callable[[Site, Message], Message], settings: Poisoned) -> Callable[[Site, Message], Message]:
    """Return the turn of a site that turns its update round, or makes more of it."""
    factor = -settings.factor if settings.how == "sign-flip" else settings.factor

    def run(site: Site, message: Message) -> Message:
        lent = {name: value.cpu() for name, value in message.items()}
        reply = honest(site, message)
        for name, value in reply.items():
            if name in lent and value.is_floating_point():
                least = 0.0 if name.endswith(VARIANCE) else -ABSURD
                reply[name] = (lent[name] + factor * (value.cpu() - lent[name])).clamp(least, ABSURD)
        return reply

    return run


OUTGOING: tuple[Outgoing, ...] = (ClipAtSite(), Poison(), Mask())
ADMIT, COMBINE = Admit(), Combine()
INCOMING: tuple[Incoming, ...] = (ADMIT, ClipAtServer(), COMBINE, Noise())


def protected(calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> Mapping[str, Call]:
    """Return a method's calls with the site's chain around them."""
    for step in OUTGOING:
        if step.wanted(recipe.federation):
            calls = step.around(calls, recipe, net)
    return calls


def incoming(federation: Federation) -> tuple[Incoming, ...]:
    """Return the steps that the server takes under a recipe."""
    return tuple(step for step in INCOMING if step.wanted(federation))


def names(federation: Federation) -> dict[str, list[str]]:
    """Return the steps that a recipe asks for, at the site and at the server, in their order."""
    return {
        "site": [step.name for step in OUTGOING if step.wanted(federation)],
        "server": [step.name for step in incoming(federation)],
    }
