"""Fine-tune: personal recognition models in two stages, the first of Table 2's baselines in FedFR.

The second stage is that of T. Yu, E. Bagdasaryan, V. Shmatikov, "Salvaging Federated Learning by Local Adaptation",
2020, as FedFR (Liu et al., AAAI 2022, "Comparison with Personalized FL Methods") re-implements it. Stage one trains a
generic model with hard negatives and the contrast, without customisation. In stage two each site optimises the finished
model for itself with CosFace on its local and sampled public images, and keeps the result.

Deviations from the paper: it does not specify the length of stage two; here it is one round's local work, at the
recipe's rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from fedvisage.federation.method import EXAMPLES, LOSS, Call
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr

Loss = Callable[[Site, Batch], Tensor]


class Options(fedfr.Options):
    """FedFR's options without customisation."""

    customisation: fedfr.Customisation = fedfr.Customisation(weight=0)


def loss(site: Site, batch: Batch) -> Tensor:
    """Return the loss of the second stage: Eq. 3 alone."""
    return fedfr.balanced_cosface(site, batch, face.features_of(site, batch.images))


def second_stage(own_loss: Loss) -> Callable[[Site, Message], Message]:
    """Return a site's second stage, which trains the finished model for the site and keeps the result there."""

    def personalise(site: Site, message: Message) -> Message:
        site.load(message)
        names = fedfr.own_parameters(site)
        site.held["global"] = site.frozen(message, *site.net)
        site.held["centres"] = face.own_centres(site).detach().clone()
        face.train_local_model(site, own_loss, fedfr.with_hard_negatives(site), tuple(site.net), names)
        return site.statistics()

    return personalise


def server(s: Server) -> Iterator[None]:
    """Run stage one, FedFR's averaging; after the last round each site personalises the model."""
    weight = s.recipe.options(Options).weight
    for _ in s.rounds():
        with s.quorum():
            s.load(s.reduce("train", s.lent(), weight=weight).value)
            if s.round == s.recipe.training.rounds:
                s.ask("personalise", s.lent())
        yield


def calls(own_loss: Loss) -> dict[str, Call]:
    """Return the calls of both stages."""
    return {"train": fedfr.TRAIN, "personalise": Call(second_stage(own_loss), (EXAMPLES, LOSS))}


METHOD = replace(
    fedfr.METHOD,
    name="fine-tune",
    title="Fine-tune",
    options=Options,
    calls=calls(loss),
    server=server,
    prediction=face.WITH_LOCAL,
    supports=frozenset({"micro_batch"}),
)
