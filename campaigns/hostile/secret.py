"""Secure aggregation with one hostile site: the result is the sum of the uploads, or there is none.

Sites are those of a simulation, except that training adds a constant to the weights. One reply of site B, in one of the
five calls, is mutated in transit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from campaigns.hostile.mutations import MESSAGE_MUTATIONS, Mutation
from tests.toy import make_sets, quiet_reporter, recipe_of, tree

from fedvisage.federation.exchange import Exchange
from fedvisage.federation.record.ledger import JsonLines
from fedvisage.federation.record.store import SiteStore, StateCache
from fedvisage.federation.secure.calls import CONSISTENCY, KEYS, SHARES, UNMASK, layout_of, threshold_of
from fedvisage.federation.secure.total import TooFewSites, sum_uploads
from fedvisage.federation.site import Site
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply
from fedvisage.federation.wire.schema import SUMMED, schema_of
from fedvisage.methods import METHODS
from fedvisage.tasks.catalogue import set_up, task_of

HOSTILE = "B"
SHIFT = {"A": 0.25, "B": -0.5, "C": 0.125}
"""The constant that each site adds to floating-point weights."""

LOW_ORDER = (
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
)
"""Public keys of low order, whose shared secrets are zero."""


def train_by_shift(site: Site, message: Message) -> Message:
    """Train: add the site's constant to the weights."""
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
        train = replace(plain.calls[SUMMED], run=train_by_shift)
        self.method = replace(plain, calls={**plain.calls, SUMMED: train})
        self.recipe = recipe_of(tree(sets, federation__secure={"entropy": "derived", "colluders": 0}))
        setup = set_up(self.recipe, self.method)
        data = task_of(self.method).open(self.recipe, self.method, prepared / "cache", quiet_reporter().say)
        self.workspace, self.sites = setup.workspace(), data.sites
        whole = self.method.network(self.recipe)
        self.weights = {
            f"{part}.{name}": value.clone() for part in whole for name, value in whole[part].state_dict().items()
        }
        schema = schema_of(train.uploads, self.recipe, whole)
        self.weights = {name: self.weights[name] for name in schema.tensors if name in self.weights}
        self.layout = layout_of(schema)

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Mutate one reply of the hostile site."""
        call = pick(draws, (KEYS, SHARES, SUMMED, CONSISTENCY, UNMASK))
        mutation = weak_key if call == KEYS and draws.random() < 0.4 else pick(draws, MESSAGE_MUTATIONS)
        return Case(["secure", call, mutation.__name__], partial(self._check, call, mutation, draws, place))

    def _check(self, call: str, mutation: Mutation, draws: np.random.Generator, place: Path) -> None:
        site_workers, cache = [], StateCache()
        for name, site in self.sites.items():
            site_workers.append(
                SiteWorker(name, site.train, site.heldout, SiteStore(place / name, cache), self.workspace)
            )
        wire = MutatingTransport(site_workers, call, mutation, draws)
        ledger = JsonLines(place / "ledger.jsonl")
        exchange = Exchange(self.recipe, wire, self.workspace.schemas, ledger)
        exchange.open_round(1)
        try:
            total = sum_uploads(exchange, self.weights, self.layout, threshold_of(self.recipe, 1))
        except TooFewSites as error:
            raise Rejected(str(error)) from error
        finally:
            ledger.close()
        if HOSTILE in total.failed:
            raise Rejected(total.failed[HOSTILE])
        self._check_mean(total.value, total.replied, is_mutated=call == SUMMED)

    def _check_mean(self, mean: Message, survivors: Sequence[str], *, is_mutated: bool) -> None:
        """Refuse a mean that is not that of the survivors; masked mutated values are only known by their range."""
        shift = sum(SHIFT[name] for name in survivors) / len(survivors)
        for name, value in mean.items():
            values, like = value.double().numpy(), self.weights[name]
            if not np.isfinite(values).all() or np.abs(values).max(initial=0) > 1e6:
                raise WronglyAccepted(f"the sum has numbers in {name} that no site may send")
            expected = like.double().numpy() + (shift if like.is_floating_point() else 0.0)
            if not (is_mutated and HOSTILE in survivors) and np.abs(values - expected).max(initial=0) > 1e-6:
                raise WronglyAccepted(f"the sum is not that of {', '.join(survivors)}")


class MutatingTransport(LocalTransport):
    """A transport that mutates the hostile site's reply to one call."""

    def __init__(
        self, site_workers: Sequence[SiteWorker], mutated_call: str, mutation: Mutation, draws: np.random.Generator
    ) -> None:
        super().__init__(site_workers)
        self.mutated_call, self.mutation, self.draws = mutated_call, mutation, draws

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Yield the replies, one of them mutated."""
        for reply in super().call(orders):
            if reply.site == HOSTILE and orders[HOSTILE].call == self.mutated_call and reply.message is not None:
                message = dict(reply.message)
                self.mutation(message, self.draws)
                yield replace(reply, message=message)
            else:
                yield reply


def weak_key(message: Message, draws: np.random.Generator) -> str:
    """Replace a public key by one of low order, or by the site's other key."""
    keys, row = message["public"].clone(), int(draws.integers(2))
    chosen = pick(draws, (*LOW_ORDER, keys[1 - row].numpy().tobytes()))
    keys[row] = torch.from_numpy(np.frombuffer(chosen, dtype=np.uint8).copy())
    message["public"] = keys
    return "weak key"
