"""Who takes part in a round: a drawn fraction of the sites, less those that are (in a simulation) offline."""

from __future__ import annotations

from collections.abc import Sequence

from fedvisage.recipe import Federation
from fedvisage.streams import numpy_rng


def asked(names: Sequence[str], settings: Federation, seed: int, round_number: int) -> tuple[str, ...]:
    """Draw the sites that the server asks in a round, in sorted order; at least one of those that have joined."""
    names = [name for name in names if settings.joins.get(name, 1) <= round_number]
    count = settings.asks(len(names))
    if count == len(names):
        return tuple(names)
    chosen = numpy_rng(seed, round_number, "participation").choice(len(names), size=count, replace=False)
    return tuple(names[index] for index in sorted(chosen))


def offline(names: Sequence[str], settings: Federation, seed: int, round_number: int) -> frozenset[str]:
    """Draw the sites that are unreachable in a round.

    ``any-site``: each on its own with the given probability. ``one-site``: with that probability a single site, drawn
    anew each round (PrivacyFace, A.2.7).
    """
    if not settings.offline:
        return frozenset()
    if settings.offline_policy == "any-site":
        drawn = {name: numpy_rng(seed, name, round_number, "offline").random() for name in names}
        return frozenset(name for name, value in drawn.items() if value < settings.offline)
    rng = numpy_rng(seed, round_number, "offline")
    lost = rng.random() < settings.offline
    return frozenset([names[int(rng.integers(len(names)))]] if lost else [])
