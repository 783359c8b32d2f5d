"""FedBABU: the federation trains the body alone, and each site fine-tunes the finished model.

J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022. The
head keeps its random initial weights h⁰ in all rounds: a site minimises f_k(φ, h⁰) over the body φ, and the server
averages the bodies. After the last round each site fine-tunes the whole finished model on its own images; the result
is the site's personal model.

In attack detection the head is the last layer. In recognition it is the site's class centres, which stay as they were
created: at random with ``centres: random``, as in the paper, or as mean features, the default.

Deviations from the paper: fine-tuning takes one round's local work at the recipe's rate, without ``l2sp``; the authors'
notebook takes 5 epochs. Only the sites of the last round fine-tune. Sites count according to ``weight``. The fixed
head is uploaded and averaged with the body, which leaves it as it is; noise (``federation.dp``) changes it at the
server alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fedvisage.base.errors import UserError
from fedvisage.federation.method import Call, Method
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.algorithms import fedavg
from fedvisage.methods.algorithms.fedrep import check_body_and_head
from fedvisage.methods.models.model import GENERIC_AND_LOCAL, Loss, Model, keep_local
from fedvisage.nn.optimizers import hold
from fedvisage.recipe import Recipe

PAPER = "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022"


def train_body(model: Model) -> Callable[[Site, Loss], None]:
    """Return a round's local work with a fixed head."""

    def fit(site: Site, loss: Loss) -> None:
        with hold(model.head(site).values()):
            model.fit(site, loss)

    return fit


def fine_tuning(model: Model) -> Call:
    """Return the call that trains the finished model at a site, and keeps the result there."""

    def personalise(site: Site, message: Message) -> Message:
        site.load(message)
        model.fit(site, model.loss)
        site.statistics()  # raises an error for a loss that is not finite
        keep_local(site, *model.parts)
        return {}

    return Call(personalise, ())


def server(s: Server) -> Iterator[None]:
    """Run federated averaging; after the last round each site personalises the model."""
    for _ in fedavg.server(s):
        if s.round == s.recipe.training.rounds:
            with s.quorum():
                s.ask("personalise", s.lent())
        yield


def check(recipe: Recipe) -> None:
    """Reject a run that may end before the round in which sites personalise the model."""
    check_body_and_head(recipe)
    if recipe.training.early_stop is not None:
        raise UserError("recipe.training.early_stop", "ends a run before sites fine-tune the model; leave it out")


def fedbabu(model: Model) -> Method:
    """Return FedBABU on a model."""
    method = fedavg.on_model(
        replace(model, fit=train_body(model)),
        fedavg.options_on(model),
        name="fedbabu",
        title="FedBABU",
        paper=PAPER,
        advice="A common body alone; then each site fine-tunes everything.",
        server=server,
        check=check,
    )
    return replace(
        method,
        calls={**method.calls, "personalise": fine_tuning(model)},
        prediction=replace(model.prediction, personal=GENERIC_AND_LOCAL),
    )
