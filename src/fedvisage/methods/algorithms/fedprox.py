"""FedProx: a proximal term keeps sites near the model that the server lent them.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, Algorithm 2. Each site minimises its own loss plus µ/2·‖w − wᵗ‖² (Eq. 2). With µ = 0 this is FedAvg.

Deviations from the paper: all sites do the same local work, so the partial work of stragglers (γ-inexact solutions)
does not occur; sites count according to ``weight`` instead of being drawn by their number of images. The paper tunes µ
in {0.001, 0.01, 0.1, 1}; the default of 0.01 is one of these, not a recommendation of the paper. The reported training
loss includes the proximal term. With ``training.privacy`` the term is part of each person's loss and is clipped with
it.
"""

from pydantic import Field
from torch import Tensor

from fedvisage.federation.method import Method
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Loss, Model
from fedvisage.nn.losses.proximal import proximal
from fedvisage.recipe import MethodOptions

PAPER = "Li et al., Federated Optimization in Heterogeneous Networks, 2020"


class ProximalOptions(MethodOptions):
    """µ, the strength of the pull towards the lent model."""

    mu: float = Field(0.01, ge=0)
    """Weight µ of the proximal term; 0 is FedAvg."""


def with_proximal_term(own: Loss) -> Loss:
    """Return Eq. 2: the site's own loss plus the proximal term over all trainable weights."""

    def loss(site: Site, batch: Batch) -> Tensor:
        options = site.recipe.options(ProximalOptions)
        total = own(site, batch)
        if options.mu:
            weights = dict(site.net.named_parameters())
            total = total + options.mu * proximal(weights.values(), (site.lent[name] for name in weights))
        return total

    return loss


def fedprox(model: Model) -> Method:
    """Return FedProx on a model."""
    return fedavg.on_model(
        model,
        fedavg.options_on(model, ProximalOptions),
        name="fedprox",
        title="FedProx",
        paper=PAPER,
        advice="When sites train long and drift apart: a proximal term (mu) keeps them near the common model.",
        loss=with_proximal_term(model.loss),
        supports=fedavg.WITHOUT_STATE,
    )
