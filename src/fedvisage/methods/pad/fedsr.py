"""FedSR: a simple representation, kept short and close to a common distribution of its class.

A. T. Nguyen, P. Torr, S. N. Lim, "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning",
NeurIPS 2022. The network returns a distribution z ~ N(µ(x), σ(x)²), from which each step draws once, and a linear layer
classifies z. A site minimises the cross-entropy plus

    α_L2R · E‖z‖ + α_CMI · KL(N(Cµ(x), C²σ(x)²) ‖ N(µ_y, σ_y²)),

an L2 norm, and a bound on the conditional mutual information between images and representation, given the label y. The
reference distributions of the classes and the scale C are learned. The weights of both terms are those of the authors'
code. Sites average the network; as in that code, the reference distributions stay at the sites.

Deviations from the paper: the network is FedPAD's ResNet-18, as wide in z as in its features. Predictions classify the
mean µ(x), so that exported graphs need no draws; the authors' code averages 20 draws. The L2 term is the mean length of
z, as there; whether the paper squares it is unknown to us.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from fedvisage.federation.method import Home, Member, Method, Prediction
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models import resnet18
from fedvisage.recipe import Recipe

CLASSES = 2


class Options(resnet18.Options):
    """FedPAD's options, and the weights of the two regularisers."""

    l2: float = Field(0.01, ge=0)
    """Weight α_L2R of the length of the representation."""
    information: float = Field(0.0005, ge=0)
    """Weight α_CMI of the bound on the information about images beyond their class."""


class Reference(nn.Module):
    """The reference distribution of each class, and the scale C of representations."""

    def __init__(self, width: int) -> None:
        """Start from a mean of 0, a spread of softplus(1) and a scale of 1."""
        super().__init__()
        self.mean, self.spread = nn.Parameter(torch.zeros(CLASSES, width)), nn.Parameter(torch.ones(CLASSES, width))
        self.scale = nn.Parameter(torch.ones(1))

    def divergence(self, mean: Tensor, spread: Tensor, labels: Tensor) -> Tensor:
        """Return the mean divergence of a batch's distributions from those of their classes."""
        classes, scale = labels.long(), self.scale.abs()
        reference = Normal(self.mean[classes], softplus(self.spread)[classes])
        return kl_divergence(Normal(scale * mean, scale * spread), reference).sum(dim=1).mean()


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build FedPAD's network, the layer that returns µ and σ, and the reference distributions."""
    net = resnet18.network(recipe)
    width = net["model"].get_submodule("fc").in_features
    assert isinstance(width, int)
    net["distribution"], net["reference"] = nn.Linear(width, 2 * width), Reference(width)
    return net


def represent(net: nn.ModuleDict, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the spread of each image's representation."""
    mean, spread = net["distribution"](resnet18.represent(net, images)).float().chunk(2, dim=1)
    return mean, softplus(spread)


def loss(site: Site, batch: Batch) -> Tensor:
    """Return the cross-entropy of a drawn representation plus both regularisers."""
    options, reference = site.recipe.options(Options), site.net["reference"]
    assert isinstance(reference, Reference)
    with site.autocast():
        mean, spread = represent(site.net, batch.images)
    noise = torch.randn(mean.shape, generator=site.rng("representation", len(site.losses)))
    drawn = mean + spread * noise.to(mean)
    length: Tensor = torch.linalg.vector_norm(drawn, dim=1).mean()
    total = resnet18.MODEL.supervise(site, batch, drawn) + options.l2 * length
    return total + options.information * reference.divergence(mean, spread, batch.labels)


def predict(member: Member) -> Tensor:
    """Return the live logit of the mean representation."""
    return resnet18.head(member.net, features(member)).squeeze(1)


def features(member: Member) -> Tensor:
    """Return the mean representation."""
    return represent(member.net, member.images)[0]


METHOD = Method(
    name="fedsr",
    title="FedSR",
    paper="Nguyen et al., FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, 2022",
    advice="As fedpad; the representation is short and noisy.",
    task="pad",
    options=Options,
    network=network,
    home={"model": Home.LENT, "distribution": Home.LENT, "reference": Home.SITE},
    calls={"train": fedavg.training_call(loss, "model", "distribution")},
    server=fedavg.server,
    prediction=Prediction(predict, features=features),
    delivered=("model", "distribution"),
    # One draw per step is of a whole batch.
    supports=fedavg.EVERYTHING - {"micro_batch"},
    check=resnet18.check,
)
