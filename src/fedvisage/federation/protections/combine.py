"""How uploads become one. The mean folds them in site by site, so that its memory does not grow with the sites.

Norm clipping with a given bound streams like the mean. The other robust rules compare the uploads with each other and
hold all of a round's in memory; they are right for dozens of sites, not for thousands.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Federation

# Norm clipping: no site moves the model further than a bound.
#
# Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019, §4: an update
# Δ is divided by max(1, ‖Δ‖₂/M). The update is the difference between what a site sends and what it was lent.
#
# Deviations from the paper: M may be the median of the round's norms instead of a number that is known before; no
# noise
# is added (that is ``federation.dp``). The norm runs over all floating-point tensors, BatchNorm statistics included,
# as
# these decide about predictions like weights do; counters are not clipped.


Tensors = Mapping[str, Tensor]


def norm_of_update(upload: Tensors, base: Tensors) -> float:
    """Return ‖upload − base‖₂ over the floating-point tensors, in float64."""
    squares = (
        float((value.double() - base[name].double()).square().sum())
        for name, value in upload.items()
        if value.is_floating_point()
    )
    return math.sqrt(sum(squares))


def clipped(upload: Tensors, base: Tensors, bound: float) -> dict[str, Tensor]:
    """Return base + Δ/max(1, ‖Δ‖/bound) in float64; an upload within the bound is returned as it is."""
    norm = norm_of_update(upload, base)
    if norm <= bound:
        return dict(upload)
    return {
        name: base[name].double().lerp(value.double(), bound / norm) if value.is_floating_point() else value
        for name, value in upload.items()
    }


# Krum and multi-Krum: the uploads that lie closest to their neighbours.
#
# P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
# Gradient Descent", NeurIPS 2017, §4. With n uploads of which f may be hostile, the score of an upload is the sum of
# its
# squared distances to the n − f − 2 uploads closest to it. Krum takes the one with the lowest score, multi-Krum the
# mean
# of the m lowest. It needs 2f + 2 < n.
#
# Deviations from the paper: it compares gradients; here the updates of sites are compared, whose differences are
# those of
# their uploads. Distances run over all floating-point tensors, BatchNorm statistics included. The multi-Krum of the
# paper
# demands m ≤ n − f − 2, and so does this one. Of equal scores the first site in the order of names wins.


def squared_distances(uploads: Sequence[Tensors]) -> Tensor:
    """Return ‖Vᵢ − Vⱼ‖² of all pairs."""
    distances = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for row, one in enumerate(uploads):
        for column, other in enumerate(uploads[:row]):
            distances[row, column] = distances[column, row] = norm_of_update(one, other) ** 2
    return distances


def scores(distances: Tensor, hostile: int) -> Tensor:
    """Return s(i), the sum over the n − f − 2 closest others."""
    count = len(distances)
    if count <= 2 * hostile + 2:
        raise ValueError(f"{count} uploads are too few to withstand {hostile} hostile ones")
    # The first of each sorted row is the distance to itself, which is 0.
    return distances.sort(dim=1).values[:, 1 : count - hostile - 1].sum(dim=1)


def chosen(uploads: Sequence[Tensors], hostile: int, select: int = 1) -> list[int]:
    """Return the positions of the uploads with the lowest scores, in rising order of position."""
    ranked = torch.sort(scores(squared_distances(uploads), hostile), stable=True).indices
    return sorted(ranked[:select].tolist())


# The coordinate-wise median.
#
# D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
# Rates", ICML 2018, Definition 1. With an even number of sites it is the mean of the two values in the middle.
#
# Deviations from the paper: it takes the median of gradients; here it is that of uploads, which is the same up to
# what
# all were lent.


def median(stacked: Tensor) -> Tensor:
    """Return the median over the first dimension, coordinate by coordinate."""
    ordered, count = stacked.sort(dim=0).values, len(stacked)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


# The coordinate-wise trimmed mean.
#
# D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
# Rates", ICML 2018, Definition 2. Of each coordinate the largest and the smallest values are left out, as many at
# each
# end as sites may be hostile, and the rest is averaged.
#
# Deviations from the paper: it trims gradients; here uploads are trimmed, which is the same up to what all were
# lent.
# The number at each end is given as such and not as a share β of the sites.


def trimmed_mean(stacked: Tensor, cut: int) -> Tensor:
    """Return the mean over the first dimension without the ``cut`` largest and smallest values of each coordinate."""
    count = len(stacked)
    if count <= 2 * cut:
        raise ValueError(f"{count} values are too few to leave out {cut} at each end")
    return stacked.sort(dim=0).values[cut : count - cut].mean(dim=0)


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
