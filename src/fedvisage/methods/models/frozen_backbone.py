"""A frozen backbone that is never sent: each machine loads its weights from its own copy of a file.

Used by models with a :class:`~fedvisage.nn.adapters.FrozenNetwork` whose weights come from a file named in ``network``.
A finished model stores the frozen tensors with those of its parts, so it needs no other file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import nn

from fedvisage.base.errors import UserError
from fedvisage.federation.wire.message import Message
from fedvisage.nn.adapters import FaceBackbone, FrozenNetwork, load_frozen
from fedvisage.nn.timm_network import PLACE, load_weights
from fedvisage.recipe import Recipe


def load_constant(net: nn.ModuleDict, recipe: Recipe, files: Mapping[str, Path]) -> None:
    """Load the weights that the recipe names into the frozen network, from this machine's copy of the file."""
    weights = getattr(getattr(recipe.method, "network", None), "weights", None)
    if weights is None or not any(_bodies(net)):
        return
    path = files.get(weights, Path(weights))
    if not path.is_file():
        raise UserError(
            f"{PLACE}.weights", f"{weights} is missing on this machine, and the frozen network is never sent"
        )
    for _, body in _bodies(net):
        if isinstance(body.frozen, FaceBackbone):
            load_frozen(body.frozen, path)
        else:
            load_weights(body.frozen, path)


def constant_weights(net: nn.ModuleDict) -> Message:
    """Return the frozen network's tensors under their names in a finished model."""
    return {f"{part}.{name}": value for part, body in _bodies(net) for name, value in body.frozen_state().items()}


def fold_adapters(net: nn.ModuleDict) -> None:
    """Merge the parameters trained within the frozen network into its weights, permanently."""
    for part, body in list(_bodies(net)):
        net[part] = body.fold_adapters()


def _bodies(net: nn.ModuleDict) -> Iterator[tuple[str, FrozenNetwork]]:
    yield from ((part, body) for part, body in net.items() if isinstance(body, FrozenNetwork))
