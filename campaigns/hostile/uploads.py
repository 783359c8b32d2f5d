"""Uploads of a hostile site, to the server that asked it together with two honest ones.

A case is one exchange of one call of one method. Site B answers through the door of this process, as NVFlare hands its
answer over, or as bytes; A and C answer as they should. What may be taken in of B is worked out here in NumPy from the
declaration, and what was taken in is combined by a rule of the recipe, whose result must be numbers of the right types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from campaigns.hostile.case import Admitted, Case, Turned, line_of, pick
from campaigns.hostile.secret import Secret
from campaigns.hostile.twists import MESSAGE, parcel, spoil_bytes
from tests.toy import make_sets, quiet_reporter, recipe_of, tree

from fedvisage.base.files import json_line
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.privacy.accountant import BudgetSpent
from fedvisage.federation.protections.combine import combination_of
from fedvisage.federation.record.ledger import JsonLines, read_lines
from fedvisage.federation.wire.message import MalformedMessage, Message, decode, encode
from fedvisage.federation.wire.schema import SUMMED, Schema
from fedvisage.federation.wire.transport import Order, Reply
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
class Asked:
    """One call of a method under a recipe, with what is declared of its replies."""

    method: str
    call: str
    recipe: Recipe
    schema: Schema


class Uploads:
    """Every call of every method, as declared."""

    def __init__(self, prepared: Path) -> None:
        """Work out what each method's calls declare, over both forms of the wire."""
        sets = make_sets(prepared)
        self.asked = [one for name in METHODS for one in _calls(name, sets, prepared / "cache")]
        self.secret = Secret(prepared / "secret")

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Spoil one reply."""
        if draws.random() < 0.15:
            return self.secret.case(draws, place)
        asked = pick(draws, self.asked)
        names, ways = ("A", HOSTILE, "C", "D", "E", "F"), []
        honest = {name: reply_of(asked.schema, draws) for name in names}
        spoilt, twists = dict(honest[HOSTILE]), int(draws.integers(1, 3))
        route = pick(draws, ("local", "nvflare", "parcel", "bytes"))
        if route in ("local", "nvflare"):
            ways = [pick(draws, MESSAGE)(spoilt, draws) for _ in range(twists)]
        answer = _answer(route, spoilt, ways, draws)
        wire = Hostile(names, honest, answer, again=draws.random() < 0.05, unasked=draws.random() < 0.05)
        rule = pick(draws, RULES)
        ways[:0] = [asked.method, asked.call, route, rule]
        return Case(ways, lambda: _take(asked, wire, rule, place))


class Hostile:
    """A transport that brings honest replies, and those of one site as they come."""

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
        """Bring everybody's answer, of the hostile site perhaps twice, or one of a site that nobody asked."""
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
        """Nothing is kept here."""
        return {}

    def restore(self, generations: Mapping[str, int]) -> None:
        """Nothing is kept here."""


def _answer(route: str, spoilt: Any, ways: list[str], draws: np.random.Generator) -> Callable[[str], Reply]:
    """Return what makes the hostile site's reply of the order's ticket."""
    if route == "local":
        return lambda ticket: Reply(HOSTILE, spoilt, ticket=ticket)
    if route == "nvflare":
        return lambda ticket: unpack_reply(HOSTILE, {"words": {"ticket": ticket}, "tensors": spoilt})
    if route == "parcel":

        def packed(ticket: str) -> Reply:
            way, whole = parcel({"words": {"ticket": ticket}, "tensors": spoilt}, draws)
            ways.append(way)
            return unpack_reply(HOSTILE, whole)

        return packed
    way, data = spoil_bytes(encode(spoilt), draws)
    ways.append(way)

    def read(ticket: str) -> Reply:
        try:
            return Reply(HOSTILE, decode(data), ticket=ticket)
        except MalformedMessage as error:
            return Reply(HOSTILE, None, f"refused: {error}"[:300], ticket)

    return read


def _take(asked: Asked, wire: Hostile, rule: str, place: Path) -> None:
    """Carry one exchange out, and look at what was taken in of it."""
    ledger = JsonLines(place / "ledger.jsonl")
    exchange = Exchange(asked.recipe, wire, {asked.call: asked.schema}, ledger)
    exchange.open_round(1)
    uploads: dict[str, Message] = {}
    try:
        for reply in exchange.run(asked.call, {}):
            if reply.message is not None:
                uploads[reply.site] = reply.message
    except BudgetSpent:
        if not asked.schema.releases:
            raise Admitted("a spent budget of a call that releases nothing") from None
        raise Turned("the budget is spent") from None
    ledger.close()
    record = exchange.record
    json_line(record.failed).encode()
    for name, reason in record.failed.items():
        if (wrong := line_of(ValueError(f"{name}: {reason}"))) is not None:
            raise Admitted(wrong)
    entered = {row["site"] for row in read_lines(place / "ledger.jsonl") if row["direction"] == "up"}
    if (
        (asked.schema.uploads and entered != uploads.keys())
        or uploads.keys() - set(wire.names)
        or (HOSTILE in uploads and HOSTILE in record.failed)
    ):
        raise Admitted(f"the ledger has {sorted(entered)}, {sorted(uploads)} are used")
    if not {*wire.names} - {HOSTILE} <= uploads.keys():
        raise Admitted(f"honest replies were refused: {record.failed}")
    if HOSTILE in uploads and (why := unsound(uploads[HOSTILE], asked.schema, wide=True)) is not None:
        raise Admitted(why)
    if asked.call == SUMMED:
        _combine(exchange, asked, uploads, rule)
    if HOSTILE not in uploads:
        raise Turned(record.failed[HOSTILE])


def _combine(exchange: Exchange, asked: Asked, uploads: Mapping[str, Message], rule: str) -> None:
    """Combine what was taken in; no tensor may come out that is no number, or beyond all that went in."""
    base = exchange.without_statistics(asked.call, uploads["A"])
    settings = Combine.model_validate({"rule": rule, **({"hostile": 1} if rule in ("trimmed-mean", "krum") else {})})
    combined = combination_of(Federation(combine=settings), lambda: base)
    for name in sorted(uploads):
        combined.add(exchange.without_statistics(asked.call, uploads[name]), 1.0)
    for name, tensor in combined.exact().items():
        values = tensor.double().numpy()
        if not np.isfinite(values).all():
            raise Admitted(f"{rule} made {name} infinite")
        most = max(float(np.abs(one[name].double().numpy()).max(initial=0)) for one in uploads.values())
        if values.size and float(np.abs(values).max()) > most * 1.0001 + 1e-9:
            raise Admitted(f"{rule} made {name} larger than every upload")


def _calls(name: str, sets: Mapping[str, Path], cache: Path) -> Iterator[Asked]:
    """Yield what the calls of a method declare, in every form in which they can travel."""
    method = METHODS[name]
    forms = FORMS if "wire" in method.options.model_fields else ()
    for changes in (*VARIANTS, *forms):
        recipe = recipe_of(tree(sets, name, **changes))
        recipe = task_of(method).fill_recipe(recipe, cache, quiet_reporter().say)
        for call, schema in set_up(recipe, method).workspace().schemas.items():
            if not (changes.get("federation__wire") and not schema.narrow):
                yield Asked(name, call, recipe, schema)


def reply_of(schema: Schema, draws: np.random.Generator) -> Message:
    """Return a reply as it should be."""
    rows, made = int(draws.integers(1, 4)), {}
    for name, expected in schema.tensors.items():
        shape = tuple(rows if size == -1 else size for size in expected.shape)
        if name == "cost":
            made[name] = torch.tensor([[0, 1.0, 1e-3, 1.0, 1e-3, 0, 0], [0, 0, 1.0, 1e-3, 1.0, 2.0, 1]]).double()
        elif name == "examples":
            made[name] = torch.tensor(int(draws.integers(1, 1000)))
        elif expected.dtype.is_floating_point:
            drawn = draws.normal(0.0, 0.1, shape)
            positive = name.endswith((".scale", "running_var"))
            made[name] = torch.from_numpy(np.asarray(np.abs(drawn) if positive else drawn)).to(expected.dtype)
        else:
            made[name] = torch.from_numpy(
                np.asarray(draws.integers(0, 2 if expected.dtype == torch.bool else 100, shape))
            )
            made[name] = made[name].to(expected.dtype)
    return made


def unsound(message: Mapping[str, Any], schema: Schema, *, wide: bool = False) -> str | None:
    """Return what of a reply contradicts its declaration, worked out without the code that admits replies.

    ``wide``: weights that travelled as bf16 are float32 again by now.
    """
    if set(message) != set(schema.tensors):
        return f"has other names: {sorted(set(message) ^ set(schema.tensors))[:3]}"
    for name, expected in schema.tensors.items():
        tensor, shape = message[name], expected.shape
        if not isinstance(tensor, torch.Tensor):
            return f"{name} is no tensor"
        widened = wide and schema.narrow and expected.dtype == torch.bfloat16 and tensor.dtype == torch.float32
        if tensor.dtype != expected.dtype and not widened:
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
        counted = expected.kind not in ("masked",) and tensor.dtype in (torch.int32, torch.int64, torch.uint8)
        if counted and values.size and (values.min() < 0 or values.max() > 2.0**53):
            return f"{name} is no count"
        if name.endswith(".scale") and name.removesuffix(".scale") in message and largest * 127 > CANONICAL * 1.001:
            return f"{name} scales beyond {CANONICAL:g}"
    if "examples" in message and not 1 <= int(message["examples"]) <= 10**8:
        return "has an absurd number of examples"
    return None
