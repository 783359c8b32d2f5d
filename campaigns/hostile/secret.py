"""Secure aggregation with one hostile site: there is the sum of what was sent, or there is none.

Sites are as they are in a simulation, but for their training: each returns what it was lent, moved a little. What site
B sends in one of the five calls is spoilt on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from campaigns.hostile.case import Admitted, Case, Turned, pick
from campaigns.hostile.twists import MESSAGE, Twist
from tests.toy import make_sets, quiet_reporter, recipe_of, tree

from fedvisage.federation.exchange import Exchange
from fedvisage.federation.record.ledger import JsonLines
from fedvisage.federation.record.store import SiteStore, StateCache
from fedvisage.federation.secure.calls import CONSISTENCY, KEYS, SHARES, UNMASK, layout_of, threshold_of
from fedvisage.federation.secure.total import TooFewSites, sum_uploads
from fedvisage.federation.site import Site
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import SUMMED, schema_of
from fedvisage.federation.wire.transport import Order, Reply
from fedvisage.methods import METHODS
from fedvisage.tasks.catalogue import set_up, task_of

HOSTILE = "B"
SHIFT = {"A": 0.25, "B": -0.5, "C": 0.125}
"""By how much each site moves every number that is no count."""

LOW_ORDER = (
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
)
"""Public keys with which everybody agrees on nothing."""


def moved(site: Site, message: Message) -> Message:
    """Train: move each number by what this site is known for."""
    weights = {
        name: value + SHIFT[site.name] if value.is_floating_point() else value for name, value in message.items()
    }
    return weights | {"examples": torch.tensor(10), "loss": torch.tensor(0.5, dtype=torch.float64)}


class Secret:
    """A secure sum of three sites."""

    def __init__(self, prepared: Path) -> None:
        """Open the sites' data and build the network, once."""
        sets = make_sets(prepared)
        plain = METHODS["fedpad"]
        train = replace(plain.calls[SUMMED], run=moved)
        self.method = replace(plain, calls={**plain.calls, SUMMED: train})
        self.recipe = recipe_of(tree(sets, federation__secure={"entropy": "derived", "colluders": 0}))
        setup = set_up(self.recipe, self.method)
        data = task_of(self.method).open(self.recipe, self.method, prepared / "cache", quiet_reporter().say)
        self.workspace, self.sites = setup.workspace(), data.sites
        whole = self.method.network(self.recipe)
        self.lent = {
            f"{part}.{name}": value.clone() for part in whole for name, value in whole[part].state_dict().items()
        }
        schema = schema_of(train.uploads, self.recipe, whole)
        self.lent = {name: self.lent[name] for name in schema.tensors if name in self.lent}
        self.layout = layout_of(schema)

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Spoil one reply of the hostile site."""
        call = pick(draws, (KEYS, SHARES, SUMMED, CONSISTENCY, UNMASK))
        twist = weak_key if call == KEYS and draws.random() < 0.4 else pick(draws, MESSAGE)
        return Case(["secure", call, twist.__name__], partial(self._take, call, twist, draws, place))

    def _take(self, call: str, twist: Twist, draws: np.random.Generator, place: Path) -> None:
        site_workers, shelf = [], StateCache()
        for name, site in self.sites.items():
            site_workers.append(
                SiteWorker(name, site.train, site.heldout, SiteStore(place / name, shelf), self.workspace)
            )
        wire = Spoiling(site_workers, call, twist, draws)
        ledger = JsonLines(place / "ledger.jsonl")
        exchange = Exchange(self.recipe, wire, self.workspace.schemas, ledger)
        exchange.open_round(1)
        try:
            found = sum_uploads(exchange, self.lent, self.layout, threshold_of(self.recipe, 1))
        except TooFewSites as error:
            raise Turned(str(error)) from error
        finally:
            ledger.close()
        if HOSTILE in found.failed:
            raise Turned(found.failed[HOSTILE])
        self._look(found.value, found.replied, numbers_spoilt=call == SUMMED)

    def _look(self, mean: Message, survivors: Sequence[str], *, numbers_spoilt: bool) -> None:
        """Refuse a mean that is not that of the survivors; of spoilt numbers under masks only the range is known."""
        shift = sum(SHIFT[name] for name in survivors) / len(survivors)
        for name, value in mean.items():
            values, like = value.double().numpy(), self.lent[name]
            if not np.isfinite(values).all() or np.abs(values).max(initial=0) > 1e6:
                raise Admitted(f"the sum has numbers in {name} that no site may send")
            expected = like.double().numpy() + (shift if like.is_floating_point() else 0.0)
            if not (numbers_spoilt and HOSTILE in survivors) and np.abs(values - expected).max(initial=0) > 1e-6:
                raise Admitted(f"the sum is not that of {', '.join(survivors)}")


class Spoiling(LocalTransport):
    """A wire on which the hostile site's answer to one call is spoilt."""

    def __init__(
        self, site_workers: Sequence[SiteWorker], spoilt: str, twist: Twist, draws: np.random.Generator
    ) -> None:
        super().__init__(site_workers)
        self.spoilt, self.twist, self.draws = spoilt, twist, draws

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Bring answers, one of them spoilt."""
        for reply in super().call(orders):
            if reply.site == HOSTILE and orders[HOSTILE].call == self.spoilt and reply.message is not None:
                message = dict(reply.message)
                self.twist(message, self.draws)
                yield replace(reply, message=message)
            else:
                yield reply


def weak_key(message: Message, draws: np.random.Generator) -> str:
    """Publish a key with which none can be agreed, or somebody's own twice."""
    keys, row = message["public"].clone(), int(draws.integers(2))
    chosen = pick(draws, (*LOW_ORDER, keys[1 - row].numpy().tobytes()))
    keys[row] = torch.from_numpy(np.frombuffer(chosen, dtype=np.uint8).copy())
    message["public"] = keys
    return "weak key"
