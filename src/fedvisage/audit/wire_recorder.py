"""A recorder on the wire: a finished run continues for some rounds while every reply of its sites is recorded.

The rounds are the method's own, with its calls, its wire format and its noise, and start from the finished model. An
audit therefore sees exactly what a server would see, after all protections of the recipe. There is one difference:
noise that is divided over all rounds of a run (``method.leakage``) is slightly larger, because the run is longer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedvisage.audit.finding import AuditedRun
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.record.ledger import JsonLines
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.server import Server
from fedvisage.federation.site import Batch, Site
from fedvisage.federation.site_worker import LocalTransport, SiteWorker, Workspace
from fedvisage.federation.wire.message import Message, Order, Reply


@dataclass(frozen=True)
class RecordedReply:
    """One reply of a site, its number among the replies to the same call in the round (from 0), and its message."""

    site: str
    call: str
    round: int
    number: int
    message: Message


class Recorder(LocalTransport):
    """A transport that keeps a copy of every reply."""

    def __init__(self, site_workers: Sequence[SiteWorker]) -> None:
        """Start without replies."""
        super().__init__(site_workers)
        self.answers: list[RecordedReply] = []

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Forward orders and replies, and keep a copy of each reply's message."""
        for reply in super().call(orders):
            if reply.message is not None:
                order = orders[reply.site]
                kind = (reply.site, order.call, order.round)
                number = sum((answer.site, answer.call, answer.round) == kind for answer in self.answers)
                self.answers.append(RecordedReply(*kind, number, dict(reply.message)))
            yield reply


@dataclass(frozen=True)
class Recording:
    """The recorded replies, and the sites that sent them, for comparing an attack with the truth."""

    answers: tuple[RecordedReply, ...]
    sites: Mapping[str, Site]

    def of(self, call: str) -> list[RecordedReply]:
        """Return the replies to one call."""
        return [answer for answer in self.answers if answer.call == call]

    def truth(self, answer: RecordedReply) -> Batch:
        """Return the batch of a reply, for calls that run once per batch."""
        site = self.sites[answer.site]
        return site.batch((answer.round - 1) * site.batches_per_round + answer.number)


def record_rounds(subject: AuditedRun, rounds: int) -> Recording:
    """Continue a finished run for some rounds and return the recorded replies."""
    training = subject.recipe.training.model_copy(update={"rounds": subject.recipe.training.rounds + rounds})
    recipe = subject.recipe.model_copy(update={"training": training})
    method, compute = subject.method, subject.setup.compute
    workspace = Workspace(method, recipe, compute)
    with tempfile.TemporaryDirectory() as scratch, closing(JsonLines(Path(scratch) / "ledger.jsonl")) as ledger:
        workers = [
            SiteWorker(name, site.train, site.heldout, SiteStore(Path(scratch) / "sites" / name), workspace)
            for name, site in subject.data.sites.items()
        ]
        recorder = Recorder(workers)
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
    return Recording(tuple(recorder.answers), sites)


def rounds_for(subject: AuditedRun, images: int) -> int:
    """Return the number of rounds that show about this many images, for a method that sends every batch."""
    training = subject.recipe.training
    batch = min(training.batch.of(name) for name in subject.data.sites)
    per_round = batch * (training.local.batches or 1) * len(subject.data.sites)
    return max(1, -(-images // per_round))
