"""FedRep: sites share the body of the network, and each has a head of its own.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021, Algorithm 1. In each round a site takes τ steps for its head h_k with the lent body φᵗ⁻¹ fixed,
then updates the body with the head fixed, and the server averages the bodies:

    h_k ← h_k − η ∇_h f_k(h, φᵗ⁻¹), τ times;    φ_k = φᵗ⁻¹ − η ∇_φ f_k(h_k, φ);    φᵗ = mean(φ_k)

In attack detection the head is the last layer, and a site's personal model is the averaged body with its own head. In
recognition the head is the site's class centres W, which always stay at the site. Faces are compared by features, which
no head changes: the personal model is the site's body before the last mean, as in FedAvg.

Deviations from the paper: τ and the steps of the body are passes over the round's local work (``head_passes``, then
one). Sites count according to ``weight``. A target outside the federation needs a head, so sites upload theirs and the
server delivers their mean, as in the authors' code; a site replaces the lent mean by its own head. There is no further
training of the heads after the last round, as there is in that code. BatchNorm's running statistics belong to the body,
and move in both phases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pydantic import Field

from fedvisage.base.errors import UserError
from fedvisage.federation.method import GENERIC, RESULT, Method, Personal
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Loss, Model
from fedvisage.nn.adapters import AdaptedNetwork
from fedvisage.nn.optimizers import hold
from fedvisage.recipe import MethodOptions, Recipe

PAPER = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021"
HEAD = "head/"
"""Prefix of the head in a site's private state."""


class HeadOptions(MethodOptions):
    """The work on the head in each round."""

    head_passes: int = Field(1, ge=0)
    """Number of passes over the round's local work that train the head, before one pass trains the body."""


def train_head_then_body(model: Model) -> Callable[[Site, Loss], None]:
    """Return a round's local work in two phases."""

    def fit(site: Site, loss: Loss) -> None:
        head = model.head(site)
        with hold(value for name, value in site.net.named_parameters() if name not in head):
            for _ in range(site.recipe.options(HeadOptions).head_passes):
                model.fit(site, loss)
        with hold(head.values()):
            model.fit(site, loss)

    return fit


def with_own_head(turn: fedavg.Turn, model: Model) -> fedavg.Turn:
    """Return local work on the lent body with the site's own head, which the site stores."""

    def train(site: Site, message: Message) -> Message:
        reply = turn(site, message | under(HEAD, site.kept))
        site.kept.update({f"{HEAD}{name}": reply[name] for name in model.head(site) if name in reply})
        return reply

    return train


def personal_model(site: Site, finished: Message) -> Message:
    """Return the averaged body with the site's own head."""
    return (under(f"{RESULT}/", finished) or finished) | under(HEAD, site.kept)


def check_body_and_head(recipe: Recipe) -> None:
    """Reject samples of classes, whose centres train although the head is fixed, and a body that cannot train."""
    if getattr(recipe.method, "sampled_classes", None) is not None:
        raise UserError(
            "recipe.method.sampled_classes",
            f"trains the sampled centres in every step, but {recipe.method.name} fixes them at times; leave it out",
        )
    network = getattr(recipe.method, "network", None)
    if isinstance(network, AdaptedNetwork) and network.rank == 0 and not network.biases:
        raise UserError(
            "recipe.method.network.rank",
            f"is 0, so that only the head trains, but {recipe.method.name} trains the body without it; give 1 or more",
        )


def fedrep(model: Model) -> Method:
    """Return FedRep on a model."""
    method = fedavg.on_model(
        replace(model, fit=train_head_then_body(model)),
        fedavg.options_on(model, HeadOptions),
        name="fedrep",
        title="FedRep",
        paper=PAPER,
        advice="A personal last layer per site, on a common body.",
        wrap_turn=lambda turn: with_own_head(turn, model),
        check=check_body_and_head,
    )
    models = model.prediction.personal or {"generic": GENERIC, "own": Personal(personal_model)}
    return replace(method, prediction=replace(model.prediction, personal=models))
