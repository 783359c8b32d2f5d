"""Simulated hostile sites: what they send is well formed and passes admission, and is meant to spoil the model.

- ``sign-flip``: what was lent less the site's own update, times a factor: the others' progress is undone.
- ``scaling``: what was lent plus the update times a factor: the site's own model outweighs the others'.
- ``label-flip``: the site trains honestly on data whose bona fide images are called attacks and the reverse.

The first two change all floating-point tensors. Variances are kept from falling below zero and values from leaving the
range that admission allows, as an attacker would who knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import nn

from fedvisage.data.batches import View
from fedvisage.federation.declared import Call
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import ABSURD, VARIANCE
from fedvisage.federation.wire.upload import SUMMED
from fedvisage.recipe import Federation, Poisoned, Recipe


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
