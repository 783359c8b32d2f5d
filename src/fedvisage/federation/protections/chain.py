"""The two chains of protections, in the order in which they are taken.

At the site: an update is clipped; a simulated hostile site spoils what it sends after that, as one would; and last the
masks of secure aggregation go over what is left, since nothing can be done to numbers under masks. At the server: each
upload is admitted against its declaration, clipped once more, combined with the others by the recipe's rule, and noise
is added to what they came to. Under secure aggregation the server sees no single upload: it admits masked numbers, adds
them up, and only the noise is left for it to do.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedvisage.federation.declared import Call
from fedvisage.federation.protections.admission import Admit
from fedvisage.federation.protections.clipping import ClipAtServer, ClipAtSite
from fedvisage.federation.protections.combining import Combine
from fedvisage.federation.protections.masks import Mask
from fedvisage.federation.protections.noise import Noise
from fedvisage.federation.protections.poison import Poison
from fedvisage.federation.protections.step import Incoming, Outgoing
from fedvisage.recipe import Federation, Recipe

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
