"""Any timm image network with one live logit.

``network: {arch: mobilenetv3_small_100, weights: FILE}`` names one of timm's architectures and, as a start, a
safetensors file of its weights; nothing is downloaded. Binary cross-entropy trains it, as in FedPAD.
"""

from typing import cast

from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.federation.server import Server
from fedvisage.methods.models.model import classifier_model
from fedvisage.nn.timm_network import (
    PLACE,
    NormalisedNetwork,
    TimmNetwork,
    check_architecture,
    load_weights,
    timm_network,
)
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The network."""

    network: TimmNetwork


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the network as a single part."""
    return nn.ModuleDict({"model": timm_network(recipe.options(Options).network, recipe.input, outputs=1)})


def check(recipe: Recipe) -> None:
    """Reject an unknown architecture, and more than one source of initial weights."""
    check_architecture(recipe.options(Options).network.arch)
    if recipe.options(Options).network.weights is not None and recipe.training.start is not None:
        raise UserError(f"{PLACE}.weights", "and training.start both give initial weights; leave one of them out")


def begin(s: Server) -> None:
    """Load the weights that the recipe names into the initial model."""
    weights = s.recipe.options(Options).network.weights
    if weights is not None:
        load_weights(cast(NormalisedNetwork, s.net["model"]), s.file(weights))


def represent(net: nn.ModuleDict, images: Tensor) -> Tensor:
    """Return the input of the last layer."""
    return cast(NormalisedNetwork, net["model"]).pool_features(images)


def head(net: nn.ModuleDict, features: Tensor) -> Tensor:
    """Return the live logit."""
    return cast(NormalisedNetwork, net["model"]).classify(features)


MODEL = classifier_model(
    name="timm",
    title="timm",
    advice="Attack detection: any image network of timm, such as a small one for a device.",
    options=Options,
    network=network,
    parts=("model",),
    represent=represent,
    head=head,
    check=check,
    begin=begin,
)
