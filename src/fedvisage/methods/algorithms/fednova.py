"""FedNova: sites that take more steps do not weigh more; the server averages directions instead of distances.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, Eq. 6–7 and §4. A site divides its change by ‖a_i‖₁, the length of its steps'
weights: the number of steps τ_i for plain SGD, [τ_i − ρ(1 − ρ^τ_i)/(1 − ρ)]/(1 − ρ) with momentum ρ. The server steps
by the mean of these times τ_eff = Σ p_i ‖a_i‖₁. If all sites take the same number of steps, this is FedAvg.

Deviations from the paper: sites count according to ``weight`` (the paper: p_i by their examples). BatchNorm's
statistics are averaged. A site's class centres, which stay there, are not normalised.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Method, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Model
from fedvisage.recipe import Recipe

PAPER = "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020"
LENGTH = Upload("length", "gradient", dtype="float64", guarantee="how many plain steps the site's turn was worth")


def length(steps: int, momentum: float) -> float:
    """Return ‖a_i‖₁ of this number of steps of SGD with momentum."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def normalise_steps(turn: fedavg.Turn) -> fedavg.Turn:
    """Return local work whose reply is one step away from the lent weights and includes the number of steps."""

    def train(site: Site, message: Message) -> Message:
        reply = turn(site, message)
        steps = length(len(site.losses), site.recipe.training.optimizer.momentum)
        for name in fedavg.trained_tensors(site.net):
            lent = site.lent[name].cpu().double()
            reply[name] = (lent + (reply[name].double() - lent) / steps).to(reply[name].dtype)
        return reply | {LENGTH.name: torch.tensor(steps, dtype=torch.float64)}

    return train


def server(s: Server) -> Iterator[None]:
    """Step from the lent weights by τ_eff times the mean direction."""
    for _ in s.rounds():
        with s.quorum():
            lent = s.lent()
            mean = s.reduce("train", lent, weight=fedavg.weight_of(s.recipe)).value
            effective = float(mean.pop(LENGTH.name))
            for name in fedavg.trained_tensors(s.net):
                present = lent[name].double()
                mean[name] = (present + effective * (mean[name].double() - present)).to(lent[name].dtype)
            s.load(mean)
        yield


def check(recipe: Recipe) -> None:
    """Reject optimizers without a ‖a_i‖₁ in the paper, momentum across rounds, and a wire that rounds a single step."""
    optimizer = recipe.training.optimizer
    if recipe.federation.wire != "fp32":
        raise UserError(
            "recipe.federation.wire",
            "bf16 rounds one step's length, which FedNova multiplies by the number of steps; leave it out",
        )
    if optimizer.name != "sgd":
        raise UserError("recipe.training.optimizer.name", f"FedNova requires SGD, got {optimizer.name}; set sgd")
    if optimizer.momentum and optimizer.state == "kept":
        raise UserError(
            "recipe.training.optimizer.state",
            "kept carries momentum into a turn whose steps FedNova counts from zero; set fresh",
        )


def fednova(model: Model) -> Method:
    """Return FedNova on a model."""
    return fedavg.on_model(
        model,
        fedavg.options_on(model),
        name="fednova",
        title="FedNova",
        paper=PAPER,
        advice="When sites take different numbers of steps per round: averages directions; needs SGD.",
        wrap_turn=normalise_steps,
        more=(LENGTH,),
        server=server,
        supports=frozenset({"micro_batch"}),
        check=check,
    )
