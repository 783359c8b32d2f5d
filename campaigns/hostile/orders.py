"""Orders of a hostile server at a site that trains: undeclared, repeated, out of range.

A case is a sequence of orders for one site. The check derives the valid orders from the recipe and from the orders that
the site has executed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from campaigns.hostile.mutations import MESSAGE_MUTATIONS, ODD_NAMES
from campaigns.hostile.uploads import reply_of
from tests.toy import make_sets, quiet_reporter, recipe_of, tree

from fedvisage.base.errors import RunFailed
from fedvisage.federation.method import Call
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site import Site
from fedvisage.federation.site_worker import SiteWorker, Workspace
from fedvisage.federation.wire.message import Message, Order
from fedvisage.federation.wire.schema import RefusedMessage, Schema
from fedvisage.methods import METHODS
from fedvisage.tasks.catalogue import set_up, task_of

METHOD_NAMES = ("fedpad", "scaffold", "fedsis", "fedface", "privacyface", "fedstackfpad", "single")
ROUNDS = 3


class Orders:
    """One site per method, whose calls reply at once with valid messages."""

    def __init__(self, prepared: Path) -> None:
        """Open the site's data and build the networks, once."""
        sets, self.places = make_sets(prepared), list[tuple[Workspace, Any]]()
        for name in METHOD_NAMES:
            method = METHODS[name]
            recipe = task_of(method).fill_recipe(recipe_of(tree(sets, name)), prepared / "cache", quiet_reporter().say)
            workspace = set_up(recipe, method).workspace()
            workspace.calls = {
                call: replace_by_reply(original, workspace.schemas[call]) for call, original in workspace.calls.items()
            }
            site = task_of(method).open(recipe, method, prepared / "cache", quiet_reporter().say).sites["A"]
            self.places.append((workspace, site))

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Create a sequence of orders."""
        workspace, site = pick(draws, self.places)
        workspace.current = None
        worker = SiteWorker("A", site.train, site.heldout, SiteStore(place / "A"), workspace)
        orders = list(_orders(workspace, draws))
        return Case(
            [workspace.method.name, *(str(order.call)[:20] for order in orders)], lambda: _check(worker, orders)
        )


def replace_by_reply(call: Call, schema: Schema) -> Call:
    """Return a call that replies without computing, because the test is only whether it is executed."""

    def run(site: Site, message: Message) -> Message:
        return reply_of(schema, np.random.default_rng(0))

    return replace(call, run=run)


def _orders(workspace: Workspace, draws: np.random.Generator) -> Iterator[Order]:
    calls = list(workspace.calls)
    for _ in range(int(draws.integers(1, 9))):
        call = pick(draws, calls)
        message = _message(workspace, call, draws)
        number: Any = pick(draws, (1, 1, 2, 2, 3, 0, -1, ROUNDS + 1, 10**30))
        if draws.random() < 0.3:
            pick(draws, MESSAGE_MUTATIONS)(message, draws)
        if draws.random() < 0.1:
            call = pick(draws, (*ODD_NAMES, "sec" + call, call.upper()))
        yield Order(call, number, message, int(draws.integers(1, 4)), pick(draws, ("t", "round 1, train 1", "")))


def _message(workspace: Workspace, call: str, draws: np.random.Generator) -> Message:
    """Return some of the tensors that an order may contain."""
    accepted = workspace.accepted[call].tensors
    names = [name for name in accepted if draws.random() < 0.3]
    shapes = {name: tuple(3 if size == -1 else size for size in accepted[name].shape) for name in names}
    return {name: torch.zeros(shapes[name], dtype=accepted[name].dtype) for name in names}


def _check(worker: SiteWorker, orders: list[Order]) -> None:
    """Send the orders one after another, and check that the recipe allows the executed ones."""
    executed, questions, refused = list[tuple[str, int, int]](), dict[str, set[str]](), ""
    last_round = 0
    for order in orders:
        try:
            worker.execute(order)
        except (RefusedMessage, RunFailed) as error:
            refused = str(error).encode("ascii", "replace").decode()
            continue
        if (violation := _violation(worker.workspace, order, executed, questions, last_round)) is not None:
            raise WronglyAccepted(violation)
        if order.call not in worker.workspace.about_finished:
            executed.append((order.call, order.round, order.visit))
            last_round = order.round
    if refused:
        raise Rejected(refused)


def _violation(
    workspace: Workspace,
    order: Order,
    executed: list[tuple[str, int, int]],
    questions: dict[str, set[str]],
    last_round: int,
) -> str | None:
    """Return how an executed order violates the recipe."""
    recipe, call = workspace.recipe, workspace.calls.get(order.call)
    if call is None:
        return f"an undeclared call: {order.call!r:.40}"
    if not 1 <= order.round <= recipe.training.rounds:
        return f"round {order.round}"
    accepted = workspace.accepted[order.call].tensors
    for name, value in order.message.items():
        member, _, rest = name.partition("/")
        expected = accepted.get(name) or (accepted.get(rest) if member in recipe.data.sites else None)
        if expected is None or len(value.shape) != len(expected.shape):
            return f"{name!r:.40} is not declared so"
        if any(want not in (-1, size) for size, want in zip(value.shape, expected.shape, strict=True)):
            return f"{name} has shape {tuple(value.shape)}"
        if -1 in expected.shape and value.numel() > expected.most:
            return f"{name} has {value.numel()} elements"
    if order.call in workspace.about_finished:
        questions.setdefault(order.call, set()).add(
            str(sorted((n, v.sum().item(), tuple(v.shape)) for n, v in order.message.items()))
        )
        most = recipe.training.rounds + 2
        return f"{len(questions[order.call])} questions" if len(questions[order.call]) > most else None
    if order.round < last_round:
        return f"round {order.round} after round {last_round}"
    earlier = [visit for name, number, visit in executed if (name, number) == (order.call, order.round)]
    if earlier and not call.repeats:
        return f"{order.call} twice in round {order.round}"
    if set(earlier) - {order.visit}:
        return f"{order.call} in a second visit of round {order.round}"
    return None
