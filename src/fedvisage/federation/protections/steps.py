"""The two chains of protections, in the order of their steps.

At the site, training with privacy of people releases its weights (:mod:`fedvisage.federation.protections.dpsgd`). The
update is clipped, then a simulated hostile site modifies its upload, and the masks of secure aggregation come last,
because masked numbers cannot be processed further. At the server, each upload is checked against its declaration,
clipped once more and combined with the others by the recipe's rule, and noise is added to the result.
Under secure aggregation the server sees no single upload: it admits masked numbers, sums them, and adds noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import nn

from fedvisage.base.errors import UserError
from fedvisage.data.batches import View
from fedvisage.federation.method import Call
from fedvisage.federation.protections.combine import cast, clip_update, norm_of_update
from fedvisage.federation.protections.dpsgd import release_weights
from fedvisage.federation.record.releases import StatedCost, stated_cost
from fedvisage.federation.secure import protocol
from fedvisage.federation.secure.calls import layout_of, with_secure_sum
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, SUMMED, VARIANCE, Schema, check, schema_of
from fedvisage.recipe import Federation, HostileSites, Recipe

Calls = Mapping[str, Call]
SiteStep = Callable[[Calls, Recipe, nn.ModuleDict], Calls]
"""A step at the site: it wraps the calls of a method, and may change their declarations."""

SHRINK = 1 - 2**-14
"""Factor on a clipping target that rounding exceeded, besides the correction of the excess itself."""


def protect_calls(calls: Calls, recipe: Recipe, net: nn.ModuleDict) -> Calls:
    """Return a method's calls wrapped in the site's chain."""
    if recipe.training.privacy is not None:
        calls = release_weights(calls, recipe, net)
    for step in site_steps(recipe.federation).values():
        calls = step(calls, recipe, net)
    return calls


def site_steps(federation: Federation) -> dict[str, SiteStep]:
    """Return the site's steps for a recipe by name, in order."""
    steps: dict[str, SiteStep] = {}
    if federation.dp is not None:
        steps["clip"] = clip_at_site
    if federation.poisoned is not None:
        steps["poison"] = poison
    if federation.secure is not None:
        steps["mask"] = mask_upload
    return steps


def step_names(federation: Federation) -> dict[str, list[str]]:
    """Return the names of a recipe's steps at the site and at the server, in order."""
    clip = ["clip"] if _fixed_bound(federation) is not None else []
    noise = ["noise"] if federation.dp is not None and federation.dp.noise != 0 else []
    return {"site": list(site_steps(federation)), "server": ["admit", *clip, "combine", *noise]}


# The site's steps.


def clip_at_site(calls: Calls, recipe: Recipe, net: nn.ModuleDict) -> Calls:
    """Clip the summed update before it leaves the site, for :mod:`fedvisage.federation.protections.dp`."""
    dp, plain = recipe.federation.dp, calls[SUMMED]
    assert dp is not None
    names = set(layout_of(schema_of(plain.uploads, recipe, net)))

    def run(site: Site, message: Message) -> Message:
        lent = {name: value.to("cpu", copy=True) for name, value in message.items()}  # the method may change these
        reply = {name: value.detach().cpu() for name, value in plain.run(site, message).items()}
        weights = {name: value for name, value in reply.items() if name in names}
        if recipe.federation.secure is None:  # weights from another order suffice, because the server clips again
            lent = {name: value.cpu() for name, value in site.lent.items()} | lent
        if missing := sorted(weights.keys() - lent.keys()):
            fault = f"clips changes of the weights in an order, and that of {recipe.method.name} lacks {missing[0]}"
            raise UserError("recipe.federation.dp", f"{fault}; send s.lent(), or leave it out")
        bound = dp.clip
        if recipe.federation.secure is not None:
            # Fixed-point rounding under secure aggregation can add this norm to a clipped update.
            rounding = 2.0**-protocol.FRACTION * math.sqrt(sum(value.numel() for value in weights.values()))
            if dp.clip <= 2 * rounding:
                raise UserError("recipe.federation.dp.clip", f"must be above {2 * rounding:.3g} with federation.secure")
            bound -= rounding
        return reply | clip_after_rounding(weights, lent, bound)

    promise = f"update clipped to {dp.clip:g} at the site, no noise yet"
    uploads = tuple(
        replace(upload, guarantee=promise) if upload.kind != "statistic" else upload for upload in plain.uploads
    )
    return {**calls, SUMMED: replace(plain, run=run, uploads=uploads)}


def clip_after_rounding(upload: Message, base: Message, bound: float) -> Message:
    """Return an upload in its own types whose update stays within the bound after rounding to these types."""
    types, target = {name: value.dtype for name, value in upload.items()}, bound
    scaled = upload
    while (norm := norm_of_update(scaled, base)) > bound:
        target *= 1 if scaled is upload else SHRINK * bound / norm
        scaled = {name: cast(value, types[name]) for name, value in clip_update(upload, base, target).items()}
    return scaled


def poison(calls: Calls, recipe: Recipe, net: nn.ModuleDict) -> Calls:
    """Make hostile sites of a simulation spoil their uploads; the other sites are unchanged.

    Spoiled uploads are well formed and pass admission. The attacks:

    - ``sign-flip``: the lent weights minus the site's own update times a factor, which undoes the others' progress.
    - ``scaling``: the lent weights plus the update times a factor, so that the site's model outweighs the others'.
    - ``label-flip``: the site trains honestly on exchanged labels.

    The first two change all floating-point tensors. They keep variances non-negative and values within the range that
    admission allows, like an attacker who knows this range.
    """
    settings, honest = recipe.federation.poisoned, calls[SUMMED].run
    assert settings is not None

    def run(site: Site, message: Message) -> Message:
        if site.name not in settings.sites:
            return honest(site, message)
        if settings.how != "label-flip":
            lent = {name: value.cpu() for name, value in message.items()}
            return scale_update(honest(site, message), lent, settings)
        # The labels are flipped for this visit only; other calls read the site's own.
        data = site.data
        site.data = FlippedLabels(data.slices)
        try:
            return honest(site, message)
        finally:
            site.data = data

    return {**calls, SUMMED: replace(calls[SUMMED], run=run)}


class FlippedLabels(View):
    """A view with exchanged labels: attacks count as bona fide, bona fide images as attacks."""

    @cached_property
    def labels(self) -> npt.NDArray[np.uint8]:
        """Return the exchanged labels."""
        return np.asarray(1 - View(self.slices).labels, dtype=np.uint8)


def scale_update(reply: Message, lent: Message, settings: HostileSites) -> Message:
    """Return a reply whose update is scaled, or reversed."""
    factor = -settings.factor if settings.how == "sign-flip" else settings.factor
    for name, value in reply.items():
        if name in lent and value.is_floating_point():
            least = 0.0 if name.endswith(VARIANCE) else -LARGEST_MAGNITUDE
            reply[name] = (lent[name] + factor * (value.cpu() - lent[name])).clamp(least, LARGEST_MAGNITUDE)
    return reply


def mask_upload(calls: Calls, recipe: Recipe, net: nn.ModuleDict) -> Calls:
    """Mask the summed upload, and add the calls that exchange keys and shares; the masks cancel in the sum."""
    return with_secure_sum(calls, schema_of(calls[SUMMED].uploads, recipe, net), recipe)


# The server's steps. :meth:`fedvisage.federation.server.Server.reduce` combines the uploads between the last two; the
# last one, :func:`fedvisage.federation.protections.dp.add_noise`, is in the module of the noise.


def admit(message: Message, schema: Schema, recipe: Recipe) -> StatedCost | None:
    """Raise an error for a reply that differs from its declaration; return the stated cost of a release in it."""
    check(message, schema)
    return stated_cost(message, recipe.privacy.noise)


def clip_at_server(upload: Message, lent: Callable[[], Message], federation: Federation) -> Message:
    """Clip an upload again at the server, which trusts no site: for DP-FedAvg, or as a rule with a fixed bound.

    ``lent`` returns the weights that this round's sites received.
    """
    bound = _fixed_bound(federation)
    return upload if bound is None else clip_update(upload, lent(), bound)


def _fixed_bound(federation: Federation) -> float | None:
    """Return the bound of a recipe that does not depend on the uploads, if it has one."""
    if federation.dp is not None:
        return federation.dp.clip
    return federation.combine.bound if federation.combine.rule == "norm-clip" else None
