"""Fine-tune: personal recognition models in two stages, the first of Table 2's baselines in FedFR.

The second stage is that of T. Yu, E. Bagdasaryan, V. Shmatikov, "Salvaging Federated Learning by Local Adaptation",
2020, as FedFR (Liu et al., AAAI 2022, "Comparison with Personalized FL Methods") re-implements it. Stage one trains a
generic model with hard negatives and the contrast, without customisation. In stage two each site optimises the
finished model for itself with CosFace on its local and sampled public images, and keeps the result.

Deviations from the paper: it does not say how long stage two is; here one round's local work, with the recipe's rate.
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
    """The second stage's: Eq. 3 alone."""
    return fedfr.balanced_cosface(site, batch, face.features_of(site, batch.images))


def second_stage(own_loss: Loss) -> Callable[[Site, Message], Message]:
    """Return a site's second stage: the finished model is trained for the site, which keeps it."""

    def personalise(site: Site, message: Message) -> Message:
        site.load(message)
        own = fedfr.own_parameters(site)
        site.held["global"] = site.frozen(message, *site.net)
        site.held["centres"] = face.own_centres(site).detach().clone()
        face.train(site, own_loss, fedfr.with_hard_negatives(site), tuple(site.net), own)
        return site.statistics()

    return personalise


def server(s: Server) -> Iterator[None]:
    """Stage one is FedFR's averaging; after the last round the sites take the model and go their own ways."""
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
    averages=False,
    personal=face.LOCALLY,
)
