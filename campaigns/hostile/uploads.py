"""Uploads of a hostile site to a server that also has honest sites.

A case is one exchange of one call of one method. Site B answers within this process, as NVFlare delivers its answer, or
as bytes; the other sites answer as declared. The check computes in NumPy, from the declaration, which replies of B are
valid. A rule of the recipe then combines the accepted replies, and its result must be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, message_fault, pick
from campaigns.hostile.mutations import MESSAGE_MUTATIONS, mutate_bytes, mutate_envelope
from campaigns.hostile.secret import Secret
from tests.toy import make_sets, quiet_reporter, recipe_of, tree

from fedvisage.base.files import json_line
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.protections.combine import combination_of
from fedvisage.federation.record.ledger import JsonLines, read_lines
from fedvisage.federation.wire.message import MalformedMessage, Message, Order, Reply, decode, encode
from fedvisage.federation.wire.schema import SUMMED, Schema
from fedvisage.methods import METHODS
from fedvisage.nvflare.transport import unpack_reply
from fedvisage.recipe import Federation, Recipe
from fedvisage.recipe.federation import Combine
from fedvisage.tasks.catalogue import set_up, task_of

HOSTILE = "B"
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"federation__wire": "bf16"})
FORMS: tuple[dict[str, Any], ...] = ({"method__wire": "bf16"}, {"method__wire": "int8"})
RULES = ("mean", "norm-clip", "trimmed-mean", "median", "krum")
CANONICAL = 1e6
"""The largest magnitude that the documentation allows."""


@dataclass(frozen=True)
class MethodCall:
    """One call of a method under a recipe, with the schema of its replies."""

    method: str
    call: str
    recipe: Recipe
    schema: Schema


class Uploads:
    """Every call of every method."""

    def __init__(self, prepared: Path) -> None:
        """Collect the schemas of each method's calls, for each number format on the wire."""
        sets = make_sets(prepared)
        self.calls = [each for name in METHODS for each in _declared_calls(name, sets, prepared / "cache")]
        self.secret = Secret(prepared / "secret")

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Mutate one reply."""
        if draws.random() < 0.15:
            return self.secret.case(draws, place)
        call = pick(draws, self.calls)
        names, changes = ("A", HOSTILE, "C", "D", "E", "F"), []
        honest = {name: reply_of(call.schema, draws) for name in names}
        mutated, count = dict(honest[HOSTILE]), int(draws.integers(1, 3))
        route = pick(draws, ("local", "nvflare", "parcel", "bytes"))
        if route in ("local", "nvflare"):
            changes = [pick(draws, MESSAGE_MUTATIONS)(mutated, draws) for _ in range(count)]
        answer = _answer(route, mutated, changes, draws)
        wire = Hostile(names, honest, answer, again=draws.random() < 0.05, unasked=draws.random() < 0.05)
        rule = pick(draws, RULES)
        changes[:0] = [call.method, call.call, route, rule]
        return Case(changes, lambda: _check(call, wire, rule, place))


class Hostile:
    """A transport with honest replies, and the replies of the hostile site."""

    uncommitted: Mapping[str, str] = MappingProxyType({})
    in_turn = True

    def __init__(
        self,
        names: tuple[str, ...],
        honest: Mapping[str, Message],
        answer: Callable[[str], Reply],
        *,
        again: bool,
        unasked: bool,
    ) -> None:
        self.names, self.honest, self.answer, self.again, self.unasked = names, honest, answer, again, unasked

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Yield all replies, perhaps a second one of the hostile site, or one of a site without an order."""
        for name in sorted(orders):
            ticket = orders[name].ticket
            if name != HOSTILE:
                yield Reply(name, self.honest[name], ticket=ticket)
                continue
            yield self.answer(ticket)
            if self.again:
                yield Reply(name, self.honest[name], ticket=ticket)
            if self.unasked:
                yield Reply("unasked", self.honest[name], ticket=ticket)

    def commit(self, generation: int) -> dict[str, int]:
        """Return no generations, because no site keeps state."""
        return {}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Restore nothing."""


def _answer(route: str, mutated: Any, changes: list[str], draws: np.random.Generator) -> Callable[[str], Reply]:
    """Return a function that creates the hostile site's reply from the order's ticket."""
    if route == "local":
        return lambda ticket: Reply(HOSTILE, mutated, ticket=ticket)
    if route == "nvflare":
        return lambda ticket: unpack_reply(HOSTILE, {"words": {"ticket": ticket}, "tensors": mutated})
    if route == "parcel":

        def unpack_mutated(ticket: str) -> Reply:
            way, whole = mutate_envelope({"words": {"ticket": ticket}, "tensors": mutated}, draws)
            changes.append(way)
            return unpack_reply(HOSTILE, whole)

        return unpack_mutated
    way, data = mutate_bytes(encode(mutated), draws)
    changes.append(way)

    def read(ticket: str) -> Reply:
        try:
            return Reply(HOSTILE, decode(data), ticket=ticket)
        except MalformedMessage as error:
            return Reply(HOSTILE, None, f"refused: {error}"[:300], ticket)

    return read


def _check(call: MethodCall, wire: Hostile, rule: str, place: Path) -> None:
    """Run one exchange, and check the accepted replies."""
    ledger = JsonLines(place / "ledger.jsonl")
    exchange = Exchange(call.recipe, wire, {call.call: call.schema}, ledger)
    exchange.open_round(1)
    uploads: dict[str, Message] = {}
    try:
        for reply in exchange.run(call.call, {}):
            if reply.message is not None:
                uploads[reply.site] = reply.message
    except BudgetSpent:
        if not call.schema.releases:
            raise WronglyAccepted("a spent budget of a call that releases nothing") from None
        raise Rejected("the budget is spent") from None
    ledger.close()
    record = exchange.record
    json_line(record.failed).encode()
    for name, reason in record.failed.items():
        if (fault := message_fault(ValueError(f"{name}: {reason}"))) is not None:
            raise WronglyAccepted(fault)
    entered = {row["site"] for row in read_lines(place / "ledger.jsonl") if row["direction"] == "up"}
    if (
        (call.schema.uploads and entered != uploads.keys())
        or uploads.keys() - set(wire.names)
        or (HOSTILE in uploads and HOSTILE in record.failed)
    ):
        raise WronglyAccepted(f"the ledger has {sorted(entered)}, {sorted(uploads)} are used")
    if not {*wire.names} - {HOSTILE} <= uploads.keys():
        raise WronglyAccepted(f"honest replies were refused: {record.failed}")
    if HOSTILE in uploads and (fault := contradiction(uploads[HOSTILE], call.schema, wide=True)) is not None:
        raise WronglyAccepted(fault)
    if call.call == SUMMED:
        _combine(exchange, call, uploads, rule)
    if HOSTILE not in uploads:
        raise Rejected(record.failed[HOSTILE])


def _combine(exchange: Exchange, call: MethodCall, uploads: Mapping[str, Message], rule: str) -> None:
    """Combine the accepted replies; the result must be finite, and no larger than the largest reply."""
    tensors = exchange.schemas[call.call].tensors
    combinable = {
        name: {key: value for key, value in upload.items() if tensors[key].kind != "statistic"}
        for name, upload in uploads.items()
    }
    settings = Combine.model_validate({"rule": rule, **({"hostile": 1} if rule in ("trimmed-mean", "krum") else {})})
    combined = combination_of(Federation(combine=settings), lambda: combinable["A"])
    for name in sorted(uploads):
        combined.add(combinable[name], 1.0)
    for name, tensor in combined.exact().items():
        values = tensor.double().numpy()
        if not np.isfinite(values).all():
            raise WronglyAccepted(f"{rule} made {name} infinite")
        most = max(float(np.abs(upload[name].double().numpy()).max(initial=0)) for upload in uploads.values())
        if values.size and float(np.abs(values).max()) > most * 1.0001 + 1e-9:
            raise WronglyAccepted(f"{rule} made {name} larger than every upload")


def _declared_calls(name: str, sets: Mapping[str, Path], cache: Path) -> Iterator[MethodCall]:
    """Yield the calls of a method, for each number format on the wire."""
    method = METHODS[name]
    forms = FORMS if "wire" in method.options.model_fields else ()
    for changes in (*VARIANTS, *forms):
        recipe = recipe_of(tree(sets, name, **changes))
        recipe = task_of(method).fill_recipe(recipe, cache, quiet_reporter().say)
        for call, schema in set_up(recipe, method).workspace().schemas.items():
            if not (changes.get("federation__wire") and not schema.narrow):
                yield MethodCall(name, call, recipe, schema)


def reply_of(schema: Schema, draws: np.random.Generator) -> Message:
    """Return a valid reply."""
    rows, message = int(draws.integers(1, 4)), {}
    for name, expected in schema.tensors.items():
        shape = tuple(rows if size == -1 else size for size in expected.shape)
        if name == "cost":
            message[name] = torch.tensor([[0, 1.0, 1e-3, 1.0, 1e-3, 0, 0], [0, 0, 1.0, 1e-3, 1.0, 2.0, 1]]).double()
        elif name == "examples":
            message[name] = torch.tensor(int(draws.integers(1, 1000)))
        elif expected.dtype.is_floating_point:
            drawn = draws.normal(0.0, 0.1, shape)
            positive = name.endswith((".scale", "running_var"))
            message[name] = torch.from_numpy(np.asarray(np.abs(drawn) if positive else drawn)).to(expected.dtype)
        else:
            message[name] = torch.from_numpy(
                np.asarray(draws.integers(0, 2 if expected.dtype == torch.bool else 100, shape))
            )
            message[name] = message[name].to(expected.dtype)
    return message


def contradiction(message: Mapping[str, Any], schema: Schema, *, wide: bool = False) -> str | None:
    """Return how a reply contradicts its schema, computed without the code that accepts replies.

    ``wide``: weights that were sent as bf16 have been converted to float32.
    """
    if set(message) != set(schema.tensors):
        return f"has other names: {sorted(set(message) ^ set(schema.tensors))[:3]}"
    for name, expected in schema.tensors.items():
        tensor, shape = message[name], expected.shape
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is no tensor"
        is_widened = wide and schema.narrow and expected.dtype == torch.bfloat16 and tensor.dtype == torch.float32
        if tensor.dtype != expected.dtype and not is_widened:
            return f"{name} is {tensor.dtype}"
        if len(tensor.shape) != len(shape) or any(b not in (a, -1) for a, b in zip(tensor.shape, shape, strict=True)):
            return f"{name} has shape {tuple(tensor.shape)}"
        if -1 in shape and not 0 < tensor.numel() <= expected.most:
            return f"{name} has {tensor.numel()} elements"
        values = tensor.detach().double().numpy()
        largest = float(np.abs(values).max(initial=0))
        if tensor.dtype.is_floating_point and not largest <= CANONICAL:
            return f"{name} reaches {largest}"
        if name.endswith(("running_var", ".scale")) and (values < 0).any():
            return f"{name} is below zero"
        is_count = expected.kind not in ("masked",) and tensor.dtype in (torch.int32, torch.int64, torch.uint8)
        if is_count and values.size and (values.min() < 0 or values.max() > 2.0**53):
            return f"{name} is no count"
        if name.endswith(".scale") and name.removesuffix(".scale") in message and largest * 127 > CANONICAL * 1.001:
            return f"{name} scales beyond {CANONICAL:g}"
    if "examples" in message and not 1 <= int(message["examples"]) <= 10**8:
        return "has an absurd number of examples"
    return None
