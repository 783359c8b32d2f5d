"""FedDyn: a dynamic regulariser aligns the minima of the sites with that of the federation.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021, Algorithm 1. In round t a site minimises

    L_k(θ) − ⟨∇L_k(θ_kᵗ⁻¹), θ⟩ + α/2 ‖θ − θᵗ⁻¹‖²,

and by the condition of the first order ∇L_k(θ_kᵗ) = ∇L_k(θ_kᵗ⁻¹) − α (θ_kᵗ − θᵗ⁻¹). The server keeps
hᵗ = hᵗ⁻¹ − α/m Σ (θ_kᵗ − θᵗ⁻¹), with the sum over the sites of the round and m the number of all sites, and its model
is θᵗ = mean(θ_kᵗ) − hᵗ/α.

Both states are kept divided by −α, as in the authors' code: a site's drift d_k is the sum of its θ_kᵗ − θᵗ⁻¹, and the
server's is the mean of the drifts. The site's regulariser is then α/2 ‖θ − (θᵗ⁻¹ − d_k)‖² up to a constant.

Deviations from the paper: sites count according to ``weight``, in the mean and in the server's state. A site takes the
recipe's local steps instead of reaching the minimum. Values without a gradient, such as BatchNorm's running statistics,
are averaged, and a site's class centres have no regulariser. The default of α is that of the authors' example for
CIFAR-10. The model is θᵗ; that example plots the mean of the sites' last models. The reported loss includes the
regulariser. If a round or a reply is lost, sites have moved d_k and the server has not moved its drift. Robust rules,
noise and secure sums are refused, because the server's drift must be the mean of the sites' drifts; with ``wire: bf16``
it differs from this mean by the rounding of weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from fedvisage.federation.method import Method
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message, plain
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Loss, Model
from fedvisage.nn.losses.proximal import proximal
from fedvisage.recipe import MethodOptions

PAPER = "Acar et al., Federated Learning Based on Dynamic Regularization, 2021"
DRIFT = "drift/"
"""Prefix of the drift in the private state of sites and server."""


class DynamicOptions(MethodOptions):
    """The strength of the dynamic regulariser."""

    alpha: float = Field(0.01, gt=0)
    """Weight α of the dynamic regulariser."""


def with_regulariser(own: Loss) -> Loss:
    """Return the site's own loss plus the dynamic regulariser over all trainable weights."""

    def loss(site: Site, batch: Batch) -> Tensor:
        weights, centre = dict(site.net.named_parameters()), site.held["centre"]
        distance = proximal(weights.values(), (centre[name] for name in weights))
        return own(site, batch) + site.recipe.options(DynamicOptions).alpha * distance

    return loss


def with_drift(turn: fedavg.Turn) -> fedavg.Turn:
    """Return local work around the lent weights minus the site's drift, which then grows by the work's change."""

    def train(site: Site, message: Message) -> Message:
        lent = {name: message[name] for name in fedavg.trained_tensors(site.net)}
        drift = {name: site.kept.get(f"{DRIFT}{name}", torch.zeros(value.shape)) for name, value in lent.items()}
        site.held["centre"] = {name: value - drift[name].to(value) for name, value in lent.items()}
        reply = turn(site, message)
        for name, value in lent.items():
            site.kept[f"{DRIFT}{name}"] = drift[name] + reply[name] - plain(value)
        return reply

    return train


def server(s: Server) -> Iterator[None]:
    """Average the models, and add the mean drift of all sites."""
    for _ in s.rounds():
        with s.quorum():
            lent = s.lent()
            reduced = s.reduce("train", lent, weight=fedavg.weight_of(s.recipe))
            share, model = len(reduced.replied) / len(s.names), dict(reduced.value)
            for name in fedavg.trained_tensors(s.net):
                mean = model[name].double()
                drift = s.kept.get(f"{DRIFT}{name}", torch.zeros_like(mean)) + share * (mean - lent[name].double())
                s.kept[f"{DRIFT}{name}"] = drift
                model[name] = (mean + drift).to(lent[name].dtype)
            s.load(model)
        yield


def feddyn(model: Model) -> Method:
    """Return FedDyn on a model."""
    return fedavg.on_model(
        model,
        fedavg.options_on(model, DynamicOptions),
        name="feddyn",
        title="FedDyn",
        paper=PAPER,
        advice="When sites' data differ: aligns their minima; uploads weights only.",
        loss=with_regulariser(model.loss),
        wrap_turn=with_drift,
        server=server,
        supports=frozenset({"micro_batch"}),
    )
