"""Admission of orders at a site: only those that its recipe provides for.

An honest server program never orders a round beyond the recipe's last one, the same training of a round twice, or
evaluations of more models than the recipe has. A server that does so tries to learn more about a site than the recipe
allows. After a site restores a generation of its private state, it admits the later rounds again, because a resumed run
repeats them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from fedvisage.base.errors import plain_line
from fedvisage.federation.method import BEFORE_TRAINING, RESULT, START, Call
from fedvisage.federation.wire.message import LastMessage, Message, Order, is_plain
from fedvisage.federation.wire.precision import wide_type
from fedvisage.federation.wire.schema import ExpectedTensor, MessageLimits, RefusedMessage, Upload, limits_of, schema_of
from fedvisage.recipe import Recipe

QUOTED = 60
"""Number of characters of a name that a refusal quotes."""


@dataclass(frozen=True)
class AcceptedTensors:
    """The tensors that orders of one call may contain, by name; all are optional."""

    tensors: Mapping[str, ExpectedTensor]
    members: frozenset[str] = frozenset()
    """The members of a finished model that an order may contain: sites, or start and result."""
    checked: LastMessage = field(default_factory=LastMessage, compare=False, repr=False)
    """The last order that passed the check; in a simulation, the sites of a process receive the same tensors."""

    @property
    def extent(self) -> MessageLimits:
        """Return the largest size of an order."""
        single, copies = limits_of(self.tensors.values()), 1 + len(self.members)
        return MessageLimits(single.tensors * copies, single.size * copies, single.largest)

    def check(self, message: Message) -> None:
        """Raise an error for tensors that are undeclared, not finite, or of another type or size than declared."""
        if self.checked.is_same(message):
            return
        for name, tensor in message.items():
            # A member's tensor has the member's name as a prefix.
            member, _, rest = name.partition("/")
            expected = self.tensors.get(name) or (self.tensors.get(rest) if member in self.members else None)
            if expected is None:
                raise RefusedMessage(f"order: {plain_line(name, QUOTED)}", "is not declared for this call")
            if not is_plain(tensor):
                raise RefusedMessage(f"order: {name}", "is not a plain tensor")
            if wide_type(tensor.dtype) != wide_type(expected.dtype):
                raise RefusedMessage(f"order: {name}", f"has type {tensor.dtype}, declared {expected.dtype}")
            shape, declared = tuple(tensor.shape), expected.shape
            # Declared dimensions of -1 may have any size, within the declared number of elements.
            same = shape == declared or (
                len(shape) == len(declared) and all(b in (a, -1) for a, b in zip(shape, declared, strict=True))
            )
            if not same or (tensor.numel() > max(expected.most, 1) and -1 in declared):
                raise RefusedMessage(f"order: {name}", f"has shape {shape}, declared {declared}")
        # A norm is finite only if all values are; the norm of very large values may overflow.
        floats = {name: tensor for name, tensor in message.items() if tensor.is_floating_point()}
        if not math.isfinite(nn.utils.get_total_norm(list(floats.values()))):
            for name, tensor in floats.items():
                if not bool(tensor.isfinite().all()):
                    raise RefusedMessage("order", f"the server's tensor {name} holds values that are not finite")
        self.checked.remember(message)


def accepted_tensors(
    calls: Mapping[str, Call], recipe: Recipe, whole: nn.ModuleDict, members: bool
) -> dict[str, AcceptedTensors]:
    """Return the tensors that each call's orders may contain: parts of the network, and the call's own declarations."""
    parts = (Upload("weights", "weights", parts=tuple(whole)),)
    sites = frozenset(recipe.data.sites) if members else frozenset[str]()
    if recipe.training.keep == "average":
        sites |= {START, RESULT}
    schemas: dict[tuple[Upload, ...], Mapping[str, ExpectedTensor]] = {}
    accepted = {}
    for name, call in calls.items():
        extra = call.takes(recipe)
        if extra not in schemas:
            schemas[extra] = schema_of((*parts, *extra), recipe, whole, exact=True).tensors
        accepted[name] = AcceptedTensors(schemas[extra], sites)
    return accepted


@dataclass
class Orders:
    """The history of a site's orders, as far as the admission of the next ones depends on it."""

    calls: Mapping[str, Call]
    about_finished: Mapping[str, Call]
    accepted: Mapping[str, AcceptedTensors]
    rounds: int
    """The recipe's last round."""
    after: int = 0
    """The round of the private state that was restored last."""
    round: int = 0
    """The round of the last training order."""
    _visits: dict[str, list[int]] = field(default_factory=dict)
    _times: Counter[str] = field(default_factory=Counter)
    _questions: dict[str, set[str]] = field(default_factory=dict)

    def admit(self, order: Order) -> None:
        """Raise an error for an order that the recipe does not provide for, and remember the others."""
        if order.call not in self.calls:
            raise RefusedMessage("order", f"requests {order.call[:QUOTED]!r}, which this method does not have")
        call = self.calls[order.call]
        last_round = self.rounds if call.last_round is None else call.last_round
        if not call.first_round <= order.round <= last_round:
            raise RefusedMessage("order", f"is for round {str(order.round)[:QUOTED]}, but the recipe has {self.rounds}")
        self.accepted[order.call].check(order.message)
        if order.call in self.about_finished:
            return
        if order.round < max(self.after, self.round) or BEFORE_TRAINING < order.round <= self.after:
            last = max(self.after, self.round)
            raise RefusedMessage("order", f"is for round {order.round}, but round {last} is over")
        if order.round > self.round:
            self.round, self._visits, self._times = order.round, {}, Counter()
        visits = self._visits.setdefault(order.call, [])
        repeated = order.visit in visits
        if (repeated and not call.repeats) or (not repeated and len(visits) >= call.visits):
            raise RefusedMessage("order", f"requests {order.call!r} again in round {order.round}")
        if not repeated:
            visits.append(order.visit)

    def count(self, order: Order, batches: int) -> None:
        """Count an order, and raise an error if a visit repeats it more often than there are batches."""
        self._times[order.call] += 1
        if self.calls[order.call].repeats and self._times[order.call] > batches * self.calls[order.call].visits:
            raise RefusedMessage("order", f"requests {order.call!r} more often than there are batches")

    def question(self, call: str, question: str) -> None:
        """Raise an error for evaluations of more models than the recipe has; a repetition does not count again."""
        earlier_questions, limit = self._questions.setdefault(call, set()), self.about_finished[call].questions
        if question not in earlier_questions and len(earlier_questions) >= limit:
            raise RefusedMessage(
                "order", f"requests {call!r} for more than {limit} models, more than the recipe evaluates"
            )
        earlier_questions.add(question)

    def admit_again(self, generation: int) -> None:
        """Admit the rounds after a generation again; answers about finished models stay counted."""
        self.after, self.round, self._visits, self._times = generation, 0, {}, Counter()
