"""A recorder on the wire: a finished run goes on for some rounds, and all that its sites answer is kept.

The rounds are the method's own, with its calls, its numbers on the wire and its noise, and begin with the finished
model. So an audit sees what a server would see, and nothing that an option of the recipe takes away. One thing differs:
noise that is shared out over all rounds of a run (``method.leakage``) is a little more, as the run is longer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fedvisage.audit.finding import Subject
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.record.ledger import JsonLines
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.site_worker import LocalTransport, SiteDesk, Workspace
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.transport import Order, Reply
from fedvisage.recipe import Recipe


@dataclass(frozen=True)
class Answer:
    """One answer of a site, which call of the round it is of its kind (from 0), and the batch that it is about."""

    site: str
    call: str
    round: int
    number: int
    message: Message


@dataclass
class Recorder:
    """A transport that keeps a copy of every answer."""

    wire: LocalTransport
    names: tuple[str, ...] = ()
    answers: list[Answer] = field(default_factory=list)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Pass orders and replies on, and remember what the replies say."""
        for reply in self.wire.call(orders):
            if reply.message is not None:
                order = orders[reply.site]
                kind = (reply.site, order.call, order.round)
                number = sum((a.site, a.call, a.round) == kind for a in self.answers)
                self.answers.append(Answer(*kind, number, dict(reply.message)))
            yield reply

    def commit(self, generation: int) -> dict[str, int]:
        """Pass on."""
        return self.wire.commit(generation)

    def restore(self, generations: Mapping[str, int]) -> None:
        """Pass on."""
        self.wire.restore(generations)


@dataclass(frozen=True)
class Overheard:
    """What was heard, and the sites' own view of it, to judge an attack by."""

    answers: tuple[Answer, ...]
    sites: Mapping[str, Site]

    def of(self, call: str) -> list[Answer]:
        """Return the answers to one call."""
        return [answer for answer in self.answers if answer.call == call]

    def truth(self, answer: Answer) -> Batch:
        """Return the batch that an answer was about, for calls that are made once a batch."""
        site = self.sites[answer.site]
        return site.batch((answer.round - 1) * site.batches_per_round + answer.number)


def overhear(subject: Subject, rounds: int) -> Overheard:
    """Let a finished run go on for some rounds and return what was heard."""
    recipe, method, compute = continued(subject.recipe, rounds), subject.method, subject.setup.compute
    workspace = Workspace(method, recipe, compute)
    with tempfile.TemporaryDirectory() as scratch, closing(JsonLines(Path(scratch) / "ledger.jsonl")) as ledger:
        desks = [
            SiteDesk(name, site.train, site.heldout, SiteStore(Path(scratch) / "sites" / name), workspace)
            for name, site in subject.data.sites.items()
        ]
        recorder = Recorder(LocalTransport(desks), tuple(sorted(subject.data.sites)))
        net = method.network(recipe)
        compute.place(net)
        server = Server(method, recipe, net, Exchange(recipe, recorder, workspace.schemas, ledger), compute)
        server.load(subject.saved.finished)
        server.round = subject.recipe.training.rounds
        for _ in method.server(server):
            pass
    sites = {
        name: Site(name, recipe, server.round, data.train, workspace.net, compute, kept={}, scratch={})
        for name, data in subject.data.sites.items()
    }
    return Overheard(tuple(recorder.answers), sites)


def continued(recipe: Recipe, rounds: int) -> Recipe:
    """Return a recipe with some rounds more."""
    training = recipe.training.model_copy(update={"rounds": recipe.training.rounds + rounds})
    return recipe.model_copy(update={"training": training})


def rounds_for(subject: Subject, images: int) -> int:
    """Return how many rounds of a method that sends something for every batch show about so many images."""
    training = subject.recipe.training
    batch = min(training.batch.of(name) for name in subject.data.sites)
    a_round = batch * (training.local.batches or 1) * len(subject.data.sites)
    return max(1, -(-images // a_round))
