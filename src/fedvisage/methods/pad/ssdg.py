"""SSDG at the sites: bona fide features form one cluster, the attacks of each kind one of their own.

Y. Jia, J. Zhang, S. Shan, X. Chen, "Single-Side Domain Generalization for Face Anti-Spoofing", CVPR 2020. Its
asymmetric triplet loss has one class for the bona fide images of all domains, and one for the attacks of each domain:
attacks differ too much to be drawn together. A site minimises FedPAD's Eq. 1 plus λ times the mean of

    max(0, ‖f(a) − f(p)‖² − ‖f(a) − f(n)‖² + margin)

over the triplets of its batch where this is positive; f is the input of the last layer at unit length, a and p are of
one class, n of another. Sites average their weights as in FedPAD; with ``triplet: 0`` this is FedPAD.

Deviations from the paper: a site has one domain, so the kind of attack takes the place of its domain. The adversarial
loss, which makes bona fide features of several domains alike, needs these features in one place and is left out; the
sites share only the network. The last layer has neither unit weights nor inputs of unit length. λ and the margin are
those of the authors' code, which takes distances in place of their squares.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import resnet18
from fedvisage.nn.losses.triplet import triplet


class Options(resnet18.Options):
    """FedPAD's options, and the weight and the margin of the triplet loss."""

    triplet: float = Field(1.0, ge=0)
    """Weight λ of the triplet loss; 0 is FedPAD."""
    margin: float = Field(0.1, ge=0)
    """Margin of the triplet loss, in squared distances of features of unit length."""


def loss(site: Site, batch: Batch) -> Tensor:
    """Return FedPAD's loss plus the triplet loss over bona fide images and kinds of attack."""
    options = site.recipe.options(Options)
    with site.autocast():
        features = resnet18.represent(site.net, batch.images)
    total = resnet18.MODEL.supervise(site, batch, features)
    if options.triplet:
        classes = torch.from_numpy(np.unique(batch.species, return_inverse=True)[1]).to(features.device)
        total = total + options.triplet * triplet(features.float(), classes, options.margin)
    return total


METHOD = fedavg.on_model(
    resnet18.MODEL,
    Options,
    name="ssdg",
    title="SSDG at the sites",
    paper="Jia et al., Single-Side Domain Generalization for Face Anti-Spoofing, 2020",
    advice="As fedpad; a triplet loss draws bona fide features together.",
    loss=loss,
    # Triplets are of a whole batch.
    supports=fedavg.EVERYTHING - {"micro_batch"},
)
