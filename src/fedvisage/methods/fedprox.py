"""FedProx: sites are held near the model that the server lent them.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, Algorithm 2. Each site minimises its own loss plus µ/2·‖w − wᵗ‖² (Eq. 2). With µ = 0 this is FedPAD.

Deviations from the paper: all sites do the same local work, so the partial work of stragglers (γ-inexact solutions)
does not occur; sites count as ``weight`` says instead of being drawn by their number of images. The paper tunes µ in
{0.001, 0.01, 0.1, 1}; the default of 0.01 is one of these, not a recommendation of the paper. The reported training
loss contains the proximal term.
"""

from dataclasses import replace

from pydantic import Field
from torch import Tensor

from fedvisage.federation.site import Batch, Site
from fedvisage.methods import averaging, fedpad
from fedvisage.nn.losses.proximal import proximal
from fedvisage.recipe import MethodOptions


class Pull(MethodOptions):
    """µ, the strength of the pull back to the lent model."""

    mu: float = Field(0.01, ge=0)


class Options(fedpad.Options, Pull):
    """FedPAD's options and µ."""


def held_back(own: averaging.Loss) -> averaging.Loss:
    """Return Eq. 2: the site's own loss and the proximal term over all trainable weights."""

    def loss(site: Site, batch: Batch) -> Tensor:
        options = site.recipe.options(Pull)
        total = own(site, batch)
        if options.mu:
            weights = dict(site.net.named_parameters())
            total = total + options.mu * proximal(weights.values(), (site.lent[name] for name in weights))
        return total

    return loss


loss = held_back(fedpad.loss)


METHOD = replace(
    fedpad.METHOD,
    name="fedprox",
    title="FedProx",
    paper="Li et al., Federated Optimization in Heterogeneous Networks, 2020",
    options=Options,
    calls={"train": averaging.training_call(loss, "model")},
)
