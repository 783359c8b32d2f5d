"""Ditto: a personal model per site beside the averaged one, held near it.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
Algorithm 1. The federation trains the common model w by FedAvg. Each site also minimises, for itself,

    h_k(v; w*) = F_k(v) + λ/2 ‖v − w*‖²,    by steps v ← v − η (∇F_k(v) + λ (v − wᵗ)),

where wᵗ is the model that the server lent in this round. The personal model v_k stays at the site. With λ = 0 it is
trained by the site alone, and a large λ keeps it at the common model.

Deviations from the paper: v_k starts as the lent model of the site's first round. Both models train on the batches of
the round, as in the authors' code, the common one first. λ is the same for all sites and rounds; the authors' code can
also choose it per site. A site's own parameters (class centres) and the state of its optimizer exist once per model.
The reported loss is that of the common model.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch import Tensor

from fedvisage.federation.method import GENERIC, Method, Personal
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message, load_parts, under
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.models.model import Loss, Model, keep_local, local_model
from fedvisage.nn.losses.proximal import proximal
from fedvisage.recipe import MethodOptions

PAPER = "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021"
PERSONAL = "personal/"
"""Prefix of the private state of the personal model in the site's private state."""


class PersonalOptions(MethodOptions):
    """The strength λ of the pull of personal models towards the common one."""

    pull: float = Field(1.0, ge=0)
    """Weight λ of the pull of a personal model towards the common one; 0 is training alone."""


def with_pull(own: Loss) -> Loss:
    """Return h_k: the site's own loss plus the distance from the lent model."""

    def loss(site: Site, batch: Batch) -> Tensor:
        total, strength = own(site, batch), site.recipe.options(PersonalOptions).pull
        if strength:
            weights = dict(site.net.named_parameters())
            total = total + strength * proximal(weights.values(), (site.lent[name] for name in weights))
        return total

    return loss


def with_personal_model(turn: fedavg.Turn, model: Model) -> fedavg.Turn:
    """Return local work that first trains the common model, and then the site's personal one."""

    def train(site: Site, message: Message) -> Message:
        reply = turn(site, message)
        personal = as_personal(site)
        load_parts(personal.net, local_model(personal, message))
        personal.lent = message
        model.fit(personal, fedavg.with_proximal_term(with_pull(model.loss)))
        keep_local(personal, *model.parts)
        site.kept.update({f"{PERSONAL}{name}": value for name, value in personal.private_state().items()})
        load_parts(site.net, reply)  # after a call the workspace holds the common model
        return reply

    return train


def as_personal(site: Site) -> Site:
    """Return the site with the private state of its personal model, and without the objects of a visit."""
    return replace(
        site,
        kept=under(PERSONAL, site.kept),
        scratch={},
        common={},
        held={},
        losses=[],
        _owned={},
        _optimizers={},
    )


def personal_model(site: Site, finished: Message) -> Message:
    """Return the site's personal model, or the finished model if the site never trained."""
    return local_model(as_personal(site), finished)


def ditto(model: Model) -> Method:
    """Return Ditto on a model."""
    method = fedavg.on_model(
        model,
        fedavg.options_on(model, PersonalOptions),
        name="ditto",
        title="Ditto",
        paper=PAPER,
        advice="A personal model per site, pulled towards the averaged one.",
        wrap_turn=lambda turn: with_personal_model(turn, model),
    )
    models = {"generic": GENERIC, "own": Personal(personal_model)}
    return replace(method, prediction=replace(model.prediction, personal=models))
