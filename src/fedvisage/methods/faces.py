"""What the methods of face recognition share: their network, their local loop, and each site's own model.

A site's own class centres W are made in its first turn, from the mean features of its identities under the model that
it was lent (as FedFR's released code and FedFace do it) or at random, and stay at the site. So does the local model
Θ_l as it was before the last aggregation, which is the site's personal model (FedFR, Table 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedvisage.data.batches import View
from fedvisage.errors import UserError
from fedvisage.federation.method import Member, Message, Personal
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import under
from fedvisage.methods.averaging import AveragingOptions
from fedvisage.methods.classes import sampling
from fedvisage.nn.embedder import Centres, FaceNetwork, face_network
from fedvisage.recipe import MethodOptions, Recipe

PAPER = "Liu et al., FedFR: Joint Optimization Federated Framework for Generic and Personalized Face Recognition, 2022"
LOCAL = "local/"
"""Where the local model stands among a site's private state."""
OWN_CENTRES = "W"


class FaceOptions(MethodOptions):
    """The network, which all methods of recognition share."""

    network: FaceNetwork = FaceNetwork()


class CosFaceOptions(FaceOptions, AveragingOptions):
    """The network, CosFace's scale and margin, and how a site's class centres begin; sites count by their images."""

    weight: Literal["uniform", "examples"] = "examples"
    scale: float = Field(30.0, gt=0)
    margin: float = Field(0.4, ge=0, lt=1)
    centres: Literal["mean-features", "random"] = "mean-features"
    sampled_classes: int | None = Field(None, ge=2)
    """Of how many classes a batch's softmax is at least, drawn for each batch; all of them, unless said."""


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build the one part that every method has, the backbone."""
    return nn.ModuleDict({"model": face_network(recipe.options(FaceOptions).network, recipe.input.size)})


def network_with_public_centres(recipe: Recipe) -> nn.ModuleDict:
    """Build the backbone and the centres of the public identities."""
    if recipe.data.public_identities is None:
        raise UserError(
            "recipe.data.public", f"{recipe.method.name} trains beside public identities; name a set of them"
        )
    net = network(recipe)
    net["centres"] = Centres(recipe.data.public_identities, recipe.options(FaceOptions).network.embedding)
    return net


def user(member: Member) -> Tensor:
    """Return features; with ``evaluation.recognition.flip`` those of the mirrored images are added."""
    features: Tensor = member.net["model"](member.images)
    if member.recipe.evaluation.people.flip:
        features = features.float() + member.net["model"](member.images.flip(-1)).float()
    return features


def own_centres(site: Site, name: str = OWN_CENTRES) -> nn.Parameter:
    """Return class centres of the site's identities, which stay at the site."""
    options = site.recipe.options(CosFaceOptions)

    def make() -> Tensor:
        if options.centres == "mean-features":
            return mean_features(site)
        shape = len(site.data.identities), options.network.embedding
        return 0.01 * torch.randn(shape, generator=site.rng("centres", name))

    return site.own(name, make)


def mean_features(site: Site) -> Tensor:
    """Return the mean feature of each of the site's identities under the model that it was lent, at unit length."""
    return means_of(normalize(site.embed(site.net["model"], site.data)), site.data)


def means_of(features: Tensor, view: View) -> Tensor:
    """Return the mean of each identity's features in a view, at unit length, in the order of the identities."""
    classes = torch.from_numpy(np.searchsorted(view.identities, view.subjects))
    sums = torch.zeros(len(view.identities), features.shape[1]).index_add_(0, classes, features)
    return normalize(sums)


Loss = Callable[[Site, Batch], Tensor]


def train(site: Site, loss: Loss, view: View, parts: Sequence[str], own: Sequence[str]) -> None:
    """Minimise a loss over one round's local work on a view, then keep the local model."""
    optimizer = site.optimizer(*parts, own=own)
    centres = class_centres(site, public="centres" in parts)
    with sampling(site, optimizer, site.recipe.options(CosFaceOptions).sampled_classes, centres):
        for batch in site.batches_of(view):
            value = loss(site, batch)
            site.step(optimizer, value)
    keep_local(site)


def class_centres(site: Site, *, public: bool) -> list[nn.Parameter]:
    """Return the centres of the site's own classes and, beside them, of the public ones."""
    return [own_centres(site), *([site.net["centres"].get_parameter("weight")] if public else [])]


def features_of(site: Site, images: Tensor) -> Tensor:
    """Return the local model's features, in the run's precision and then as plain floats."""
    with site.autocast():
        features: Tensor = site.net["model"](images)
    return features.float()


def keep_local(site: Site) -> None:
    """Keep the local model, before it is lost in a mean."""
    site.kept.update({f"{LOCAL}{name}": value for name, value in site.tensors("model").items()})


def local_model(site: Site, finished: Message) -> Message:
    """Return the site's local model; the finished one, if the site never trained."""
    return under(LOCAL, site.kept) or finished


def own_transformation(site: Site) -> Callable[[Tensor], Tensor]:
    """Return what the site does to features afterwards: Π, or nothing if the site never trained."""
    found = site.kept.get("own/Pi")
    if found is None:
        return lambda features: features
    matrix = found.to(site.compute.device)
    return lambda features: features.float() @ matrix.T


GENERIC = Personal(lambda _, finished: finished)
LOCALLY = {"generic": GENERIC, "local": Personal(local_model)}
CUSTOMISED = {**LOCALLY, "own": Personal(local_model, own_transformation)}
