"""The interface of a model: a network, its parts, its loss on a batch, and its predictions.

An algorithm is a function of a model: ``fedprox(resnet18)`` is FedProx on FedPAD's network, ``fedprox(face)`` the same
for recognition. Papers that define network and algorithm as one are methods of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from fedvisage.federation.declared import Member, Personal, TaskName
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import MethodOptions, Recipe

Loss = Callable[[Site, Batch], Tensor]
"""The loss that a site minimises on a batch."""


def train_batches(site: Site, loss: Loss) -> None:
    """Minimise a loss over one round's local batches, and train the whole network."""
    optimizer = site.optimizer(*site.net)

    def value(batch: Batch) -> Tensor:
        with site.autocast():
            return loss(site, batch)

    for batch in site.batches():
        site.learn(optimizer, value, batch)


@dataclass(frozen=True)
class Model:
    """A network with its task."""

    name: str
    """Name in recipes."""
    title: str
    """Name in tables."""
    task: TaskName
    """``pad`` or ``recognition``."""
    options: type[MethodOptions]
    """The model's keys in a recipe: its ``network``, and the settings of its loss."""
    averaged: type[MethodOptions]
    """The same keys, plus the weights of sites in a mean."""
    network: Callable[[Recipe], nn.ModuleDict]
    """Builds all parts, with random weights."""
    parts: tuple[str, ...]
    """The parts that are lent to the sites and averaged."""
    represent: Callable[[nn.ModuleDict, Tensor], Tensor]
    """Returns the features of images: the input of the last layer, or the embedding that compares faces."""
    supervise: Callable[[Site, Batch, Tensor], Tensor]
    """Returns a batch's loss, given its features."""
    user: Callable[[Member], Tensor]
    """Returns live logits, or features of faces, for the target."""
    features: Callable[[Member], Tensor]
    """Returns the input of the last layer, for plots."""
    fit: Callable[[Site, Loss], None] = train_batches
    """Does one round's local work at a site, for a loss."""
    check: Callable[[Recipe], None] = lambda _: None
    """Rejects a recipe that does not fit the network."""
    begin: Callable[[Server], None] = lambda _: None
    """Loads weights that the recipe names into the initial model."""
    fix: Callable[[nn.ModuleDict, Recipe, Mapping[str, Path]], None] = lambda *_: None
    """Loads weights that are never sent, from this machine's copies of files."""
    beside: Callable[[nn.ModuleDict], Message] = lambda _: {}
    """Returns tensors that are never sent but belong to a finished model, under their names there."""
    merged: Callable[[nn.ModuleDict], None] = lambda _: None
    """Replaces a finished model's parts with plain ones that compute the same, for an export."""
    personal: Mapping[str, Personal] = field(default_factory=dict)
    """Recognition: the models that a site evaluates on its own people."""
    least_identities: Callable[[Recipe], int] = lambda _: 1
    """Recognition: the number of identities that a site needs for the loss to have a gradient."""

    def loss(self, site: Site, batch: Batch) -> Tensor:
        """Return a batch's loss, on one forward pass."""
        with site.autocast():
            features = self.represent(site.net, batch.images)
        return self.supervise(site, batch, features)
