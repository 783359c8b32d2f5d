"""Noise on the mean of clipped updates: differential privacy of sites (see :mod:`fedvisage.federation.dp`)."""

from __future__ import annotations

from dataclasses import dataclass

from fedvisage.federation.dp import plan_of, released
from fedvisage.federation.protections.step import Incoming, Mixed
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Federation, Recipe


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
