"""A frozen timm transformer with adapters and one live logit; training exchanges only a few megabytes.

``network: {arch: vit_base_patch16_clip_224, weights: FILE, rank: 8}`` names an architecture and a file of its weights,
which each machine reads from its own disk; only the adapters and the head are lent and averaged. With ``rank: 0`` it is
a linear probe on frozen features, with ``rank: 0, biases: true`` BitFit. A finished model includes the frozen network,
so it needs no other file; an export merges the adapters into it.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedvisage.methods.models.model import classifier_model
from fedvisage.nn.adapters import AdaptedNetwork, adapted_network
from fedvisage.nn.timm_network import check_architecture
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The network and its adapters."""

    network: AdaptedNetwork


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the two lent parts; the first contains the frozen network."""
    body = adapted_network(recipe.options(Options).network, recipe.input)
    return nn.ModuleDict({"adapters": body, "head": nn.Linear(body.frozen.width, 1)})


def check(recipe: Recipe) -> None:
    """Reject an unknown architecture."""
    check_architecture(recipe.options(Options).network.arch)


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the input of the head."""
    features: Tensor = net["adapters"](images)
    return features


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the live logit."""
    logits: Tensor = net["head"](features)
    return logits


MODEL = classifier_model(
    name="adapters",
    title="adapters",
    advice="Attack detection: a frozen timm transformer; only adapters of a few megabytes are sent.",
    options=Options,
    network=network,
    parts=("adapters", "head"),
    represent=represent,
    head=head,
    check=check,
)
