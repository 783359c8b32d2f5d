"""FedBN: BatchNorm layers stay at the sites, all other weights are averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, §4 and Appendix C. A site trains the lent body with BatchNorm layers of its own: scale, shift
and running statistics. With ``norms: shared`` the layers are lent as well, and this is FedPAD.

Deviations from the paper: it judges every site with the site's own layers and has no user outside the federation. For
such users its authors suggest the mean of the sites' BatchNorm layers, or statistics re-estimated at the user (issue 9
of their code; the latter is what ``evaluation.adapt`` does). So here the layers do cross the wire: sites upload them
beside the body, the server hands their mean to users and never lends it to sites. Thresholds, too, are chosen with the
mean layers. ``training.start`` is refused with private layers: it reaches the server only.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from torch import nn

from fedvisage.errors import UserError
from fedvisage.federation.method import Home
from fedvisage.federation.server import Server
from fedvisage.methods import averaging, fedpad
from fedvisage.nn.norms import split
from fedvisage.recipe import Recipe


class Options(fedpad.Options):
    """FedPAD's options, and whether BatchNorm layers are each site's own."""

    norms: Literal["private", "shared"] = "private"


def network(recipe: Recipe) -> nn.ModuleDict:
    """Build FedPAD's ResNet-18 as two parts, its BatchNorm layers and the rest."""
    if recipe.training.start is not None and recipe.options(Options).norms == "private":
        raise UserError("recipe.training.start", "does not reach the sites' own BatchNorm layers; leave it out, or use "
                        "method.norms: shared")  # fmt: skip
    body, norms = split(fedpad.network(recipe)["model"])
    return nn.ModuleDict({"model": body, "norms": norms})


def server(s: Server) -> Iterator[None]:
    """Average both parts, and lend the body only."""
    return averaging.average(s, *(("model", "norms") if s.recipe.options(Options).norms == "shared" else ("model",)))


METHOD = replace(
    fedpad.METHOD,
    name="fedbn",
    title="FedBN",
    paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, 2021",
    options=Options,
    network=network,
    home={"model": Home.LENT, "norms": Home.SITE},
    calls={"train": averaging.training_call(fedpad.loss, "model", "norms")},
    server=server,
    delivered=("model", "norms"),
)
