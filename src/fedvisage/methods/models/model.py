"""What a model is: a network, its parts, what a batch's loss is, and what a user does with it.

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
"""What a site minimises for a batch."""


def plainly(site: Site, loss: Loss) -> None:
    """Minimise a loss over one round's local batches, all of the network learning."""
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
    """What a recipe calls it."""
    title: str
    """What tables call it."""
    task: TaskName
    """``pad`` or ``recognition``."""
    options: type[MethodOptions]
    """What a recipe can say of it: its ``network``, and what its loss needs."""
    averaged: type[MethodOptions]
    """The same, and how sites count in a mean."""
    network: Callable[[Recipe], nn.ModuleDict]
    """Builds all parts, with random weights."""
    parts: tuple[str, ...]
    """The parts that are lent to the sites and averaged."""
    represent: Callable[[nn.ModuleDict, Tensor], Tensor]
    """The features of images: what the last layer sees, or what faces are compared by."""
    supervise: Callable[[Site, Batch, Tensor], Tensor]
    """A batch's loss, given its features."""
    user: Callable[[Member], Tensor]
    """The user's live logits, or features of faces."""
    features: Callable[[Member], Tensor]
    """What the last layer sees, for figures."""
    fit: Callable[[Site, Loss], None] = plainly
    """One round's local work at a site, for a loss."""
    check: Callable[[Recipe], None] = lambda _: None
    """Refuses a recipe that does not fit the network."""
    begin: Callable[[Server], None] = lambda _: None
    """Puts weights that the recipe names into the initial model."""
    fix: Callable[[nn.ModuleDict, Recipe, Mapping[str, Path]], None] = lambda *_: None
    """Puts weights that every machine has into what never travels, from this machine's copies of files."""
    beside: Callable[[nn.ModuleDict], Message] = lambda _: {}
    """What never travels and a finished model holds all the same, under the names that it has there."""
    merged: Callable[[nn.ModuleDict], None] = lambda _: None
    """Makes of a finished model's parts plain ones that compute the same, for an export."""
    personal: Mapping[str, Personal] = field(default_factory=dict)
    """Recognition: the models that a site judges on its own people."""
    least_identities: Callable[[Recipe], int] = lambda _: 1
    """Recognition: how many identities a site needs, for the loss to have a gradient."""

    def loss(self, site: Site, batch: Batch) -> Tensor:
        """Return a batch's loss, on one forward pass."""
        with site.autocast():
            features = self.represent(site.net, batch.images)
        return self.supervise(site, batch, features)
