"""How uploads become one. The mean folds them in site by site, so that its memory does not grow with the sites.

Norm clipping with a given bound streams like the mean. The other robust rules compare the uploads with each other and
hold all of a round's in memory; they are right for dozens of sites, not for thousands.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedvisage.federation.robust.krum import chosen
from fedvisage.federation.robust.median import median
from fedvisage.federation.robust.norm_clip import clipped, norm_of_update
from fedvisage.federation.robust.trimmed_mean import trimmed_mean
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Federation


class Combination(Protocol):
    """Uploads on their way to become one; they come in sorted order of sites."""

    def add(self, message: Message, weight: float) -> None:
        """Take one site's upload in."""
        ...

    def exact(self) -> Message:
        """Return what the uploads came to, in float64."""
        ...


class Mean:
    """A weighted mean of messages (Eq. 2–3 of FedPAD with equal weights), accumulated in float64.

    Sites are folded in sorted order, so the same uploads give the same bytes. With a single site the mean is that
    site's upload exactly.
    """

    def __init__(self) -> None:
        """Start with nothing."""
        self._sums: dict[str, Tensor] = {}
        self._types: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, message: Message, weight: float) -> None:
        """Fold one site's upload in."""
        for name, tensor in message.items():
            value = tensor.to(torch.float64)
            if name in self._sums:
                self._sums[name].add_(value, alpha=weight)
            else:
                self._sums[name] = value * weight
                self._types[name] = tensor.dtype
        self._weight += weight

    def exact(self) -> Message:
        """Return the mean in float64."""
        return {name: total / self._weight for name, total in self._sums.items()}

    def result(self) -> Message:
        """Return the mean in the uploads' own types; counts are rounded to the nearest whole number."""
        return {name: cast(value, self._types[name]) for name, value in self.exact().items()}


class Compared:
    """A rule that compares all uploads of a round with each other; every site counts alike."""

    def __init__(self, rule: Callable[[list[Message]], Message]) -> None:
        """Start with nothing."""
        self._rule = rule
        self._messages: list[Message] = []

    def add(self, message: Message, weight: float) -> None:
        """Keep one site's upload."""
        self._messages.append(message)

    def exact(self) -> Message:
        """Return what the rule makes of all."""
        return self._rule(self._messages)


def combination_of(federation: Federation, base: Callable[[], Message]) -> Combination:
    """Return the combination that a recipe asks for; ``base`` is what the sites were lent."""
    settings = federation.combine
    if settings.rule == "mean" or (settings.rule == "norm-clip" and settings.bound is not None):
        return Mean()  # clipping to a bound that is given is a protection of its own, before the mean
    rules: dict[str, Callable[[list[Message]], Message]] = {
        "norm-clip": lambda messages: _clipped_to_median(messages, base()),
        "trimmed-mean": lambda messages: _by_coordinate(
            messages, lambda values: trimmed_mean(values, settings.hostile)
        ),
        "median": lambda messages: _by_coordinate(messages, median),
        "krum": lambda messages: _mean([messages[i] for i in chosen(messages, settings.hostile, settings.select)]),
    }
    return Compared(rules[settings.rule])


def _by_coordinate(messages: list[Message], rule: Callable[[Tensor], Tensor]) -> Message:
    return {name: rule(torch.stack([message[name].double() for message in messages])) for name in messages[0]}


def _clipped_to_median(messages: list[Message], base: Mapping[str, Tensor]) -> Message:
    bound = statistics.median(norm_of_update(message, base) for message in messages)
    return _mean([clipped(message, base, bound) for message in messages])


def _mean(messages: list[Message]) -> Message:
    mean = Mean()
    for message in messages:
        mean.add(message, 1.0)
    return mean.exact()


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a value in a type, rounded to the nearest whole number where the type is whole."""
    return value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
