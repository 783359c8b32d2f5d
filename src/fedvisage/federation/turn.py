"""One turn of a site: an order comes in, the method's call runs in the workspace, a checked reply goes out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from fedvisage.data.batches import View
from fedvisage.federation import heldout
from fedvisage.federation.message import plain
from fedvisage.federation.method import Call, Home, Message, Method
from fedvisage.federation.schema import Schema, check, schema_of
from fedvisage.federation.scoring import Scorer
from fedvisage.federation.site import Site
from fedvisage.federation.store import SiteStore
from fedvisage.nn.precision import Compute
from fedvisage.recipe import Recipe
from fedvisage.streams import scoped


@dataclass(frozen=True)
class Order:
    """What the server asks for."""

    call: str
    round: int
    message: Message


@dataclass
class Workspace:
    """The one network in memory that all sites of a process borrow in turn; it holds no SERVER part."""

    method: Method
    recipe: Recipe
    compute: Compute
    net: nn.ModuleDict = field(init=False)
    calls: Mapping[str, Call] = field(init=False)
    schemas: Mapping[str, Schema] = field(init=False)

    def __post_init__(self) -> None:
        """Build the network and remember what a site's own parts look like at first."""
        with scoped(self.recipe.runtime.seed, "initial weights"):
            whole = self.method.network(self.recipe)
        own = self.method.parts_at(Home.SITE)
        self.net = nn.ModuleDict({part: whole[part] for part in (*self.method.parts_at(Home.LENT), *own)})
        self.net.to(self.compute.device)
        if self.compute.channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._first = self.own_parts()
        scorer = Scorer(self.method, self.recipe, self.compute)
        self.calls = {heldout.NAME: heldout.call(scorer), **self.method.calls}
        self.schemas = {name: schema_of(call, self.recipe, self.net) for name, call in self.calls.items()}

    def enter(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Make the workspace this site's: its own parts are put in, and nothing of the last site is left.

        Lent parts are blanked: a method that forgets to load what the server lent fails at once instead of training
        on another site's weights.
        """
        self.net.train()
        self.net.zero_grad(set_to_none=True)
        for part in self.method.parts_at(Home.LENT):
            for value in self.net[part].state_dict().values():
                if value.is_floating_point():
                    value.fill_(math.nan)
        for part in self.method.parts_at(Home.SITE):
            prefix = f"part/{part}."
            source = kept if any(key.startswith(prefix) for key in kept) else self._first
            self.net[part].load_state_dict(
                {key.removeprefix(prefix): value for key, value in source.items() if key.startswith(prefix)}
            )

    def own_parts(self) -> Message:
        """Return the present state of the parts that live at the site."""
        parts = self.method.parts_at(Home.SITE)
        return {f"part/{p}.{k}": plain(v) for p in parts for k, v in self.net[p].state_dict().items()}


class SiteDesk:
    """A site's end of the federation, the same for every transport: data, private state, orders carried out."""

    def __init__(self, name: str, train: View, held_out: View, store: SiteStore, workspace: Workspace) -> None:
        """Take the site's data and directory; the workspace may be shared with other sites of this process."""
        self.name, self.train, self.held_out, self.store, self.workspace = name, train, held_out, store, workspace
        self._scratch: dict[str, int] = {}
        self._scratch_round = -1

    def carry_out(self, order: Order) -> Message:
        """Run the call that was ordered and return its reply, checked against the declaration."""
        site = self._site(order)
        trains = order.call != heldout.NAME
        if trains:
            self.workspace.enter(site.kept)
        with scoped(site.recipe.runtime.seed, self.name, order.round, order.call, "library draws"):
            reply = self.workspace.calls[order.call].run(site, order.message)
        check(reply, self.workspace.schemas[order.call])
        if trains:
            self._keep(site)
        return reply

    def _site(self, order: Order) -> Site:
        if self._scratch_round != order.round:
            self._scratch, self._scratch_round = {}, order.round
        return Site(
            name=self.name,
            recipe=self.workspace.recipe,
            round=order.round,
            data=self.held_out if order.call == heldout.NAME else self.train,
            net=self.workspace.net,
            compute=self.workspace.compute,
            kept=self.store.load(),
            scratch=self._scratch,
        )

    def _keep(self, site: Site) -> None:
        site.put_away()
        kept = {**site.kept, **self.workspace.own_parts()}
        if kept:
            self.store.save(kept)
