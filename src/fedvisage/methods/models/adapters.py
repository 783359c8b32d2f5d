"""A frozen timm transformer with adapters and one live logit; training exchanges only a few megabytes.

``network: {arch: vit_base_patch16_clip_224, weights: FILE, rank: 8}`` names an architecture and a file of its weights,
which each machine reads from its own disk; only the adapters and the head are lent and averaged. With ``rank: 0`` it is
a linear probe on frozen features, with ``rank: 0, biases: true`` BitFit. A finished model includes the frozen network,
so it needs no other file; an export merges the adapters into it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.declared import Member
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms.fedavg import AveragingOptions
from fedvisage.methods.models import frozen_backbone
from fedvisage.methods.models.model import Model
from fedvisage.nn.adapters import AdaptedNetwork, adapted_network
from fedvisage.nn.timm_network import check_architecture
from fedvisage.recipe import MethodOptions, Recipe


class Options(MethodOptions):
    """The network and its adapters."""

    network: AdaptedNetwork


class Averaged(Options, AveragingOptions):
    """The network, its adapters, and the weights of sites."""


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


def supervise(site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return the binary cross-entropy, averaged over the batch."""
    return binary_cross_entropy_with_logits(site.net["head"](features).float().squeeze(1), batch.labels)


def predict(member: Member) -> Tensor:
    """Return the live logit."""
    logits: Tensor = member.net["head"](features(member))
    return logits.squeeze(1)


def features(member: Member) -> Tensor:
    """Return the input of the head."""
    return represent(member.net, member.images)


MODEL = Model(
    name="adapters",
    title="adapters",
    task="pad",
    options=Options,
    averaged=Averaged,
    network=network,
    parts=("adapters", "head"),
    represent=represent,
    supervise=supervise,
    user=predict,
    features=features,
    check=check,
    fix=frozen_backbone.load_constant,
    beside=frozen_backbone.constant_weights,
    merged=frozen_backbone.fold_adapters,
)
