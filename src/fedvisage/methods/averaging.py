"""The shared averaging loop: every site trains what the server lent, and the server takes the mean of what comes back.

A method that needs only another local loss, another network or other private parts is a few lines on top of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from torch import Tensor

from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Message, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.recipe import MethodOptions

Loss = Callable[[Site, Batch], Tensor]


class AveragingOptions(MethodOptions):
    """What all averaging methods share: whether sites count alike or by their number of images."""

    weight: Literal["uniform", "examples"] = "uniform"


def local_training(loss: Loss, *parts: str) -> Callable[[Site, Message], Message]:
    """Return the site's turn: load what was lent, minimise a loss over the local batches, upload parts."""

    def train(site: Site, message: Message) -> Message:
        site.load(message)
        optimizer = site.optimizer(*site.net)
        for batch in site.batches():
            with site.autocast():
                value = loss(site, batch)
            site.step(optimizer, value)
        return site.tensors(*parts) | site.statistics()

    return train


def training_call(loss: Loss, *parts: str) -> Call:
    """Return the call of an averaging method, with all that it uploads."""
    return Call(local_training(loss, *parts), (Upload("weights", "weights", parts=parts), EXAMPLES, LOSS))


def server(s: Server) -> Iterator[None]:
    """Federated averaging: one exchange a round."""
    yield from average(s, *s.method.parts_at(Home.LENT))


def average(s: Server, *lent: str) -> Iterator[None]:
    """Federated averaging in which these parts go down to the sites; all that comes up is averaged."""
    options = s.recipe.method
    weight = options.weight if isinstance(options, AveragingOptions) else "uniform"
    for _ in s.rounds():
        with s.quorum():
            s.load(s.reduce("train", s.tensors(*lent), weight=weight).value)
        yield
