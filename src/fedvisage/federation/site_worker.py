"""A site's end of the wire: check an order, run the method's call in the workspace, and check the reply.

Orders with the same visit number form one visit. During a visit the site keeps the workspace with its graphs and
optimizers; at the end it stores the state that must survive. A failed visit leaves no trace in the private state.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fedvisage.base.errors import UserError
from fedvisage.base.progress import OnBatch, discard_batches
from fedvisage.base.streams import seed_global_rng, torch_rng
from fedvisage.data.batches import View
from fedvisage.federation.method import BEFORE_TRAINING, Call, Home, Method
from fedvisage.federation.orders import AcceptedTensors, Orders, accepted_tensors
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.protections.steps import protect_calls
from fedvisage.federation.record.releases import Releases, SiteAccount
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.secure.calls import WITHOUT_NETWORK
from fedvisage.federation.secure.trust import SIMULATED_TRUST, Trust
from fedvisage.federation.site import Site, TrainingFailed
from fedvisage.federation.wire.message import (
    Digests,
    Message,
    Order,
    Reply,
    decode,
    encode,
    load_parts,
    plain,
    state_of,
    tensors_of,
    under,
)
from fedvisage.federation.wire.precision import narrow_message, widen_message
from fedvisage.federation.wire.schema import RefusedMessage, Schema, check, schema_of
from fedvisage.nn.batchnorm import hold_statistics
from fedvisage.nn.compute import Compute, compile_blocks
from fedvisage.recipe import Recipe

OWN = "part/"
"""Prefix of the site's own parts in its private state."""


@dataclass
class Workspace:
    """The network in memory that all sites of a process borrow in turn; it holds no SERVER part."""

    method: Method
    recipe: Recipe
    compute: Compute
    about_finished: Mapping[str, Call] = field(default_factory=dict)
    """The calls about a finished model, which every site answers for every method."""
    before_training: Mapping[str, Call] = field(default_factory=dict)
    """The calls before training, which need no network."""
    net: nn.ModuleDict = field(init=False)
    calls: Mapping[str, Call] = field(init=False)
    schemas: Mapping[str, Schema] = field(init=False)
    accepted: Mapping[str, AcceptedTensors] = field(init=False)
    on_batch: OnBatch = discard_batches
    """Called at the start of each batch of a site."""
    current: SiteWorker | None = None
    common: dict[str, Any] = field(default_factory=dict)
    digests: Digests = field(default_factory=Digests)

    def __post_init__(self) -> None:
        """Build the network, and keep the initial state of the parts that live at sites."""
        network = self.method.initial_network(self.recipe)
        site_parts = self.method.parts_at(Home.SITE)
        self.net = nn.ModuleDict({part: network[part] for part in (*self.method.parts_at(Home.LENT), *site_parts)})
        self.compute.place(self.net)
        if self.recipe.runtime.compile:
            compile_blocks(self.net)
        self._first = state_of(self.net, *site_parts)
        self._modules, self._parameters = list(self.net.modules()), list(self.net.parameters())
        lent = (value for part in self.method.parts_at(Home.LENT) for value in self.net[part].state_dict().values())
        self._lent = [value for value in lent if value.is_floating_point()]
        protected = protect_calls(self.method.calls, self.recipe, self.net)
        self.calls = {**self.about_finished, **protected, **self.before_training}
        self.schemas = {
            name: schema_of(call.uploads, self.recipe, self.net, exact=call.exact) for name, call in self.calls.items()
        }
        self.accepted = accepted_tensors(self.calls, self.recipe, network, self.method.several_models)

    def enter(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Load a site's own parts into the workspace, and remove everything of the previous site.

        Lent parts are blanked, so a method that forgets to load the server's weights fails at once instead of training
        on another site's weights.
        """
        if not all(module.training for module in self._modules):  # the call takes longer than the question
            self.net.train()
        if self.recipe.training.statistics == "frozen":
            hold_statistics(self.net)
        for parameter in self._parameters:
            parameter.grad = None
        for value in self._lent:
            value.fill_(math.nan)
        load_parts(self.net, self._first | under(OWN, kept))


class SiteWorker:
    """A site's end of the federation, the same for every transport: its data, its private state and its orders."""

    def __init__(
        self,
        name: str,
        train: View,
        held_out: View,
        store: SiteStore,
        workspace: Workspace,
        *,
        public: View | None = None,
        strangers: View | None = None,
        unseen: View | None = None,
        trust: Trust = SIMULATED_TRUST,
        account: SiteAccount | None = None,
    ) -> None:
        """Take the site's data and directory; other sites of this process may share the workspace."""
        self.name, self.train, self.held_out, self.store, self.workspace = name, train, held_out, store, workspace
        self.public, self.strangers, self.unseen, self.trust = public, strangers, unseen, trust
        self.releases = Releases(store.directory / "releases", store.owner, account)
        self._site: Site | None = None
        self._visit = (-1, -1)
        self._round = -1
        self._scratch: dict[str, Any] = {}
        self._orders = 0
        self._order_check = Orders(
            workspace.calls, workspace.about_finished, workspace.accepted, workspace.recipe.training.rounds
        )
        self._last_answer = "", b""
        self._private_questions = 0

    @property
    def keeps_state(self) -> bool:
        """Return whether the site has private state or has released values, so far."""
        return self.store.uncommitted or self.store.generation > 0 or self.releases.directory.exists()

    def execute(self, order: Order) -> Message:
        """Run an ordered call that the recipe provides for, and return its reply, checked against its declaration."""
        self._order_check.admit(order)
        if self._round != order.round:
            self._round, self._scratch, self._orders = order.round, {}, 0
        # Calls about a finished model and the key exchange of secure sums need no visit.
        if order.call in self.workspace.about_finished:
            return self._evaluate(order)
        if self.workspace.recipe.federation.secure is None and order.round != BEFORE_TRAINING:
            self.trust.remember_use()  # the calls of a secure sum do so themselves
        if order.call in WITHOUT_NETWORK or order.round == BEFORE_TRAINING:
            return self._reply(order, self._make_site(order.round, self.train, {}), 0)
        if self._site is None or self._visit != (order.round, order.visit):
            self._site = self._enter(order.round)
            self.workspace.current, self._visit = self, (order.round, order.visit)
        with ExitStack() as failing:
            failing.callback(self._forget_visit)
            self._orders += 1
            self._order_check.count(order, self._site.batches_per_round)
            reply = self._reply(order, self._site, self._orders)
            failing.pop_all()
        return reply

    def end_visit(self) -> None:
        """End the visit: store the state that must survive it, and free the workspace for another site."""
        if self._site is not None:
            # The tensors of the parts that live at the site, detached and not copied.
            workspace, kept = self.workspace, self._site.private_state()
            for part in workspace.method.parts_at(Home.SITE):
                for name, value in tensors_of(workspace.net[part], f"{OWN}{part}.").items():
                    kept[name] = value.detach()
            if kept:
                self.store.save(kept)
        self._forget_visit()

    def commit(self, generation: int) -> int:
        """Make the private state durable under a generation's number, and return the current generation."""
        self.end_visit()
        return self.store.commit(generation)

    def restore(self, generation: int) -> None:
        """Return to a generation that the server's checkpoint names."""
        self._forget_visit()
        self.store.restore(generation)
        self._order_check.admit_again(generation)

    def _enter(self, number: int) -> Site:
        """Return the site in a round: end the visit of the workspace's current site, and load this site's own parts."""
        if self.workspace.current is not None:
            self.workspace.current.end_visit()
        state = self.store.load()
        self.workspace.enter(state)
        return self._make_site(
            number, self.train, {name: value for name, value in state.items() if not name.startswith(OWN)}
        )

    def _evaluate(self, order: Order) -> Message:
        """Answer a call about a finished model; a repeated question gets the stored answer.

        After the last round the server repeats its last questions of that round. Without private state the answer
        depends only on round, call and model.
        """
        if self.workspace.calls[order.call].private:
            self._private_questions += 1
            self._order_check.question(order.call, str(self._private_questions))
            return self._reply(order, self._enter(order.round), 0)
        digest = self.workspace.digests.of(order.message)
        self._order_check.question(order.call, digest)
        question = f"{order.round} {order.call} {digest}"
        if self._last_answer[0] != question:
            reply = self._reply(order, self._make_site(order.round, self.held_out, {}), 0)
            # Most bins of the histogram are empty, and a process holds many sites.
            self._last_answer = question, zlib.compress(encode(reply), 1)
            return reply
        return decode(zlib.decompress(self._last_answer[1]))

    def _make_site(self, number: int, data: View, kept: Message) -> Site:
        workspace = self.workspace
        return Site(
            self.name,
            workspace.recipe,
            number,
            data,
            workspace.net,
            workspace.compute,
            kept=kept,
            scratch=self._scratch,
            releases=self.releases,
            test=self.held_out,
            public=self.public,
            strangers=self.strangers,
            unseen=self.unseen,
            common=workspace.common,
            on_batch=workspace.on_batch,
            trust=self.trust,
        )

    def _reply(self, order: Order, site: Site, number: int) -> Message:
        """Run the call; ``number`` distinguishes the orders of a round, so that their library draws differ."""
        schema, seed = self.workspace.schemas[order.call], site.recipe.runtime.seed
        purpose, device = (self.name, order.round, order.call), site.compute.device
        with seed_global_rng(seed, *purpose, number, "library draws", device=device):
            # A copy, because a method's changes must not reach the next site, as over a network. Our own calls about a
            # finished model only read the message.
            copied = order.call not in self.workspace.about_finished
            message = {name: value.to(device, copy=copied) for name, value in order.message.items()}
            if schema.narrow:
                message = widen_message(message)
            reply = self.workspace.calls[order.call].run(site, message)
        fields: Mapping[str, object] = reply if isinstance(reply, Mapping) else {"the reply": reply}
        for name, kind in ((name, type(value)) for name, value in fields.items()):
            if not issubclass(kind, torch.Tensor):  # the value stays at the site
                fault = f"{name} is of type {kind.__name__}; a call returns a dictionary of tensors"
                raise UserError(f"method {self.workspace.method.name!r}", f"call {order.call!r}: {fault}")
        reply = {name: plain(value) for name, value in reply.items()}
        if schema.narrow:
            reply = narrow_message(reply, lambda name: torch_rng(seed, *purpose, "wire", name))
        check(reply, schema)
        return reply

    def _forget_visit(self) -> None:
        self._site = None
        if self.workspace.current is self:
            self.workspace.current = None


class LocalTransport:
    """The transport of simulations, and the default: all sites in this process, one after another."""

    uncommitted: Mapping[str, str] = MappingProxyType({})
    """Always empty: a commit that fails ends a simulation."""
    in_turn = True

    def __init__(self, site_workers: Sequence[SiteWorker]) -> None:
        self.site_workers = {worker.name: worker for worker in sorted(site_workers, key=lambda worker: worker.name)}
        self.names = tuple(self.site_workers)

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Execute the orders, in sorted order of sites."""
        for name in sorted(orders):
            try:
                message = self.site_workers[name].execute(orders[name])
            except (BudgetSpent, TrainingFailed, RefusedMessage, OSError) as error:
                yield Reply(name, None, str(error), orders[name].ticket, spent=isinstance(error, BudgetSpent))
            else:
                yield Reply(name, message, ticket=orders[name].ticket)

    def commit(self, generation: int) -> dict[str, int]:
        """Commit every site."""
        return {name: worker.commit(generation) for name, worker in self.site_workers.items()}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Restore every site, after a check of all, so that a refused resume changes nothing."""
        for name, worker in self.site_workers.items():
            worker.store.check(generations[name])
        for name, worker in self.site_workers.items():
            worker.restore(generations[name])
