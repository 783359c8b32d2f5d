"""The interface of a model: a network, its parts, its loss on a batch, and its predictions.

An algorithm is a function of a model: ``fedprox(resnet18)`` is FedProx on FedPAD's network, ``fedprox(face)`` the same
for recognition. Papers that define network and algorithm as one are methods of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, cast

import torch
from pydantic import create_model
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fedvisage.base.errors import UserError
from fedvisage.federation.method import (
    GENERIC,
    Member,
    Personal,
    Prediction,
    TaskName,
    accept_any,
    keep_initial_model,
    one_identity,
)
from fedvisage.federation.protections.dpsgd import train_on_people, trains_on_people
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.nn.adapters import FaceBackbone, FrozenNetwork, load_frozen
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.text_head import TextClassifier, load_directions
from fedvisage.nn.timm_network import PLACE, load_weights
from fedvisage.nn.vit import live_logit
from fedvisage.recipe import MethodOptions, Recipe

Loss = Callable[[Site, Batch], Tensor]
"""The loss that a site minimises on a batch."""

Layer = Callable[[nn.ModuleDict, Tensor], Tensor]
"""A part of a forward pass: it maps images to features, or features to outputs."""


def train_batches(site: Site, loss: Loss) -> None:
    """Minimise a loss over one round's local batches, or over people with privacy, and train the whole network."""
    if trains_on_people(site.recipe):
        train_on_people(site, loss)
        return
    optimizer = site.optimizer(*site.net)

    def value(batch: Batch) -> Tensor:
        with site.autocast():
            return loss(site, batch)

    for batch in site.batches():
        site.learn(optimizer, value, batch)


# A site's own model, which it keeps between rounds and evaluates on its own people.

LOCAL = "local/"
"""Prefix of the local model in a site's private state."""


def keep_local(site: Site, *parts: str) -> None:
    """Store the local model before the mean replaces it."""
    site.kept.update({f"{LOCAL}{name}": value for name, value in site.tensors(*parts).items()})


def local_model(site: Site, finished: Message) -> Message:
    """Return the site's local model, or the finished model if the site never trained."""
    return under(LOCAL, site.kept) or finished


GENERIC_AND_LOCAL = {"generic": GENERIC, "local": Personal(local_model)}
"""The models that a site with a local model can evaluate on its own people; the method's choice is the last."""


class AveragingOptions(MethodOptions):
    """The options of all averaging methods: uniform weights of sites, or weights by their number of images."""

    of_model: ClassVar[str] = ""
    """The name of the model that the method trains."""

    weight: Literal["uniform", "examples"] = "uniform"
    """Weights of sites in a mean: ``uniform``, or their number of images (``examples``)."""


class ByExamples(AveragingOptions):
    """The same options with weights by the number of images as the default."""

    weight: Literal["uniform", "examples"] = "examples"


@dataclass(frozen=True, repr=False)
class Model:
    """A network with its task."""

    name: str
    """Name in recipes."""
    title: str
    """Name in tables."""
    task: TaskName
    """``pad`` or ``recognition``."""
    advice: str = field(default="", kw_only=True)
    """When to use the model."""
    options: type[MethodOptions]
    """The model's keys in a recipe: its ``network``, and the settings of its loss."""
    network: Callable[[Recipe], nn.ModuleDict]
    """Builds all parts, with random weights."""
    parts: tuple[str, ...]
    """The parts that are lent to the sites and averaged."""
    represent: Layer
    """Returns the features of images: the input of the last layer, or the embedding that compares faces."""
    supervise: Callable[[Site, Batch, Tensor], Tensor]
    """Returns a batch's loss, given its features."""
    prediction: Prediction
    """What the finished model computes."""
    weight: Literal["uniform", "examples"] = "uniform"
    """The default weights of sites in a mean."""
    fit: Callable[[Site, Loss], None] = train_batches
    """Does one round's local work at a site, for a loss."""
    check: Callable[[Recipe], None] = accept_any
    """Raises an error for a recipe that does not fit the network."""
    begin: Callable[[Server], None] = keep_initial_model
    """Loads weights that the recipe names into the initial model."""
    least_identities: Callable[[Recipe], int] = one_identity
    """Recognition: the number of identities that a site needs for the loss to have a gradient."""
    own_head: Callable[[Site], nn.Parameter] | None = None
    """Recognition: returns the class centres of a site, its own last layer."""

    def __repr__(self) -> str:
        """Return the name, title and task."""
        return f"Model(name={self.name!r}, title={self.title!r}, task={self.task!r})"

    @property
    def averaged(self) -> type[MethodOptions]:
        """Return the model's keys, plus the weights of sites in a mean."""
        bases = self.options, ByExamples if self.weight == "examples" else AveragingOptions
        created = create_model("Averaged", __base__=bases, __module__=__name__, __doc__=self.options.__doc__)
        options = cast("type[AveragingOptions]", created)
        options.of_model = self.name
        return options

    def loss(self, site: Site, batch: Batch) -> Tensor:
        """Return a batch's loss, on one forward pass."""
        with site.autocast():
            features = self.represent(site.net, batch.images)
        return self.supervise(site, batch, features)

    def head(self, site: Site) -> dict[str, nn.Parameter]:
        """Return the trained tensors of the last layer by name: those on which the features do not depend."""
        if self.own_head is not None:
            return {"own head": self.own_head(site)}
        weights = {name: value for name, value in site.net.named_parameters() if value.requires_grad}
        if "head" not in site.common:
            # One image through a copy in evaluation mode, which changes no running statistics.
            net, side = copy.deepcopy(site.net).eval(), site.recipe.input.size
            images = torch.zeros(1, CHANNELS[site.recipe.input.colour], side, side, device=site.compute.device)
            copies = dict(net.named_parameters())
            with site.autocast():
                total = self.represent(net, images).sum()
            slopes = torch.autograd.grad(total, [copies[name] for name in weights], allow_unused=True)
            site.common["head"] = [name for name, slope in zip(weights, slopes, strict=True) if slope is None]
        return {name: weights[name] for name in site.common["head"]}


def classifier_model(
    *,
    name: str,
    title: str,
    advice: str = "",
    options: type[MethodOptions],
    network: Callable[[Recipe], nn.ModuleDict],
    parts: tuple[str, ...],
    represent: Layer,
    head: Layer,
    weight: Literal["uniform", "examples"] = "uniform",
    check: Callable[[Recipe], None] = accept_any,
    begin: Callable[[Server], None] = keep_initial_model,
) -> Model:
    """Return a classifier for attack detection, whose ``head`` maps features to one live logit or to two classes.

    Its loss is the binary cross-entropy of the live logit, or the cross-entropy of the two classes.
    """
    return Model(
        name=name,
        title=title,
        task="pad",
        advice=advice,
        options=options,
        network=network,
        parts=parts,
        represent=represent,
        supervise=partial(_cross_entropy, head),
        # Partial functions instead of nested ones, because methods are pickled for worker processes.
        prediction=Prediction(partial(_predict_live, represent, head), features=partial(_represent_images, represent)),
        weight=weight,
        check=check,
        begin=begin,
    )


def _cross_entropy(head: Layer, site: Site, batch: Batch, features: Tensor) -> Tensor:
    """Return the cross-entropy, averaged over a batch."""
    outputs = head(site.net, features).float()
    if outputs.shape[1] == 1:
        return binary_cross_entropy_with_logits(outputs.squeeze(1), batch.labels)
    return cross_entropy(outputs, batch.labels.long())


def _predict_live(represent: Layer, head: Layer, member: Member) -> Tensor:
    """Return the live logit."""
    outputs = head(member.net, represent(member.net, member.images))
    return outputs.squeeze(1) if outputs.shape[1] == 1 else live_logit(outputs.float())


def _represent_images(represent: Layer, member: Member) -> Tensor:
    """Return the input of the last layer."""
    return represent(member.net, member.images)


# A frozen backbone is never sent: each machine loads its weights from its own copy of the file in ``network``. A
# finished model stores the frozen tensors with those of its parts, so it needs no other file.


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
        if isinstance(body.frozen, TextClassifier):
            load_directions(body.frozen, path)
        elif isinstance(body.frozen, FaceBackbone):
            load_frozen(body.frozen, path)
        else:
            load_weights(body.frozen, path, last_layer=True)


def constant_weights(net: nn.ModuleDict) -> Message:
    """Return the frozen network's tensors under their names in a finished model."""
    return {f"{part}.{name}": value for part, body in _bodies(net) for name, value in body.frozen_state().items()}


def fold_adapters(net: nn.ModuleDict) -> None:
    """Merge the parameters trained within the frozen network into its weights, permanently."""
    for part, body in list(_bodies(net)):
        net[part] = body.fold_adapters()


def _bodies(net: nn.ModuleDict) -> Iterator[tuple[str, FrozenNetwork]]:
    yield from ((part, body) for part, body in net.items() if isinstance(body, FrozenNetwork))
