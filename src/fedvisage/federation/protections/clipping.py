"""Clipping of updates: at the site before anything leaves it, and at the server, which takes nothing on trust.

The update of a site is what it sends less what it was lent; its L2 norm is cut to a bound. At the site that is a part
of DP-FedAvg (see :mod:`fedvisage.federation.dp`), at the server also a robust rule with a bound of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from fedvisage.errors import UserError
from fedvisage.federation.combine import cast
from fedvisage.federation.declared import Call
from fedvisage.federation.protections.step import Incoming
from fedvisage.federation.robust.norm_clip import clipped, norm_of_update
from fedvisage.federation.secure import fixed_point
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.upload import SUMMED
from fedvisage.recipe import Dp, Federation, Recipe

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
    rounding = 2.0**-fixed_point.FRACTION * math.sqrt(sum(value.numel() for value in weights.values()))
    if dp.clip <= 2 * rounding:
        raise UserError("recipe.federation.dp.clip", f"must be above {2 * rounding:.3g} with federation.secure")
    return dp.clip - rounding
