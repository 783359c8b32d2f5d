"""FedBN: BatchNorm layers stay at the sites, all other weights are averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, §4 and Appendix C. A site trains the lent body with its own BatchNorm layers: scale, shift
and running statistics. With ``norms: shared`` the layers are lent as well, and this is FedAvg. In a network without
BatchNorm its other normalisation layers (layer or group norm) take their place.

Deviations from the paper: it evaluates every site with the site's own layers and has no target outside the federation.
For such targets its authors suggest the mean of the sites' BatchNorm layers, or statistics re-estimated on the target
(issue 9 of their code; ``evaluation.adapt`` does the latter). Here the layers therefore do leave the sites: sites
upload them with the body; the server delivers their mean to targets and never lends it to sites. Thresholds, too, are
chosen with the mean layers. Initial weights are rejected, because they reach only the server: ``training.start`` with
private layers, ``training.pretrain`` and ``network.weights`` always.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from torch import nn

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Call, Home, Method
from fedvisage.federation.server import Server
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Model
from fedvisage.nn.batchnorm import extract_norms
from fedvisage.recipe import MethodOptions, Recipe

PAPER = "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021"


class NormOptions(MethodOptions):
    """The owner of normalisation layers: each site, or the federation."""

    norms: Literal["private", "shared"] = "private"
    """Normalisation layers are each site's own, or ``shared`` as in FedAvg."""


def separate_norms(model: Model) -> Callable[[Recipe], nn.ModuleDict]:
    """Return the network with its normalisation layers as a separate part."""

    def network(recipe: Recipe) -> nn.ModuleDict:
        net = model.network(recipe)
        _, norms = extract_norms(net)
        if not len(norms):
            raise UserError(
                "recipe.method.model",
                f"{model.title} has no normalisation layers to keep at the sites; choose another model, or fedavg",
            )
        net["norms"] = norms
        return net

    return network


def check(recipe: Recipe) -> None:
    """Reject a ResNet without BatchNorm, and initial weights that would not reach the sites' own layers."""
    network = getattr(recipe.method, "network", None)
    if without := getattr(network, "without_batchnorm", ""):
        problem = f"FedBN keeps BatchNorm layers at the sites, which {without} does not have"
        raise UserError("recipe.method.network.norm", f"{problem}; leave norm out, or use fedavg")
    if recipe.options(NormOptions).norms == "private" and recipe.training.start is not None:
        raise UserError(
            "recipe.training.start",
            "does not reach the sites' own normalisation layers; leave it out, or use method.norms: shared",
        )
    weights = getattr(network, "weights", None)
    sources = {"training.pretrain": recipe.training.pretrain, "method.network.weights": weights}
    for place in (place for place, value in sources.items() if value not in (None, "none")):
        raise UserError(
            f"recipe.{place}",
            "requires a network whose normalisation layers are shared, but FedBN keeps them at the sites; leave "
            "it out, or use fedavg",
        )


def fedbn(model: Model) -> Method:
    """Return FedBN on a model."""
    parts = (*model.parts, "norms")

    def server(s: Server) -> Iterator[None]:
        shared = s.recipe.options(NormOptions).norms == "shared"
        yield from fedavg.server(s, *(parts if shared else model.parts))

    plain = fedavg.on_model(
        model,
        fedavg.options_on(model, NormOptions, last=True),
        name="fedbn",
        title="FedBN",
        paper=PAPER,
        advice="When cameras and light differ between sites: each site keeps its own normalisation layers.",
        server=server,
        supports=frozenset({"one_mean", "micro_batch"}),
        check=check,
    )
    turn = fedavg.local_training(model.loss, *parts, fit=model.fit)
    return replace(
        plain,
        network=separate_norms(model),
        home={**plain.home, "norms": Home.SITE},
        calls={"train": Call(turn, fedavg.uploads_of(*parts))},
        delivered=parts,
    )
