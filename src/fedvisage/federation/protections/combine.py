"""Rules that combine uploads: the mean, norm clipping, Krum, median and trimmed mean.

The mean and norm clipping with a fixed bound fold uploads in one by one, so their memory does not grow with the number
of sites. The other robust rules compare the uploads of a round and hold them all in memory; they suit dozens of sites,
not thousands.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Combine, Federation

Tensors = Mapping[str, Tensor]


def norm_of_update(upload: Tensors, base: Tensors) -> float:
    """Return ‖upload − base‖₂ over the floating-point tensors, in float64."""
    squares = (
        float((value.double() - base[name].double()).square().sum())
        for name, value in upload.items()
        if value.is_floating_point()
    )
    return math.sqrt(sum(squares))


def clip_update(upload: Tensors, base: Tensors, bound: float) -> dict[str, Tensor]:
    """Return base + Δ/max(1, ‖Δ‖/bound) in float64; an upload within the bound is returned unchanged.

    Norm clipping: Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019,
    §4, divides an update Δ by max(1, ‖Δ‖₂/M). The update is the difference between a site's upload and the lent
    weights.

    Deviations from the paper: M may be the median of the round's norms instead of a fixed number; no noise is added
    (``federation.dp`` does that). The norm includes all floating-point tensors, also BatchNorm statistics, because
    these affect predictions like weights do; counters are not clipped.
    """
    norm = norm_of_update(upload, base)
    if norm <= bound:
        return dict(upload)
    return {
        name: base[name].double().lerp(value.double(), bound / norm) if value.is_floating_point() else value
        for name, value in upload.items()
    }


def squared_distances(uploads: Sequence[Tensors]) -> Tensor:
    """Return ‖Vᵢ − Vⱼ‖² of all pairs."""
    distances = torch.zeros(len(uploads), len(uploads), dtype=torch.float64)
    for row, upload in enumerate(uploads):
        for column, other in enumerate(uploads[:row]):
            distances[row, column] = distances[column, row] = norm_of_update(upload, other) ** 2
    return distances


def scores(distances: Tensor, hostile: int) -> Tensor:
    """Return Krum's score s(i) of each upload: the sum of its squared distances to the n − f − 2 closest others."""
    count = len(distances)
    if count <= 2 * hostile + 2:
        raise ValueError(f"{count} uploads are too few to withstand {hostile} hostile ones")
    # The first of each sorted row is the distance to itself, which is 0.
    return distances.sort(dim=1).values[:, 1 : count - hostile - 1].sum(dim=1)


def krum_selection(uploads: Sequence[Tensors], hostile: int, select: int = 1) -> list[int]:
    """Return the positions of the uploads with the lowest scores, in ascending order.

    Krum and multi-Krum: P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent", NeurIPS 2017, §4. Of n uploads, f may be hostile; 2f + 2 < n. Krum takes the
    upload with the lowest score, multi-Krum the mean of the m lowest.

    Deviations from the paper: it compares gradients; here the sites' updates are compared, and they differ as the
    uploads do. Distances include all floating-point tensors, also BatchNorm statistics. As in the paper, multi-Krum
    needs m ≤ n − f − 2. Of equal scores the first site by name wins.
    """
    ranked = torch.sort(scores(squared_distances(uploads), hostile), stable=True).indices
    return sorted(ranked[:select].tolist())


def median(stacked: Tensor) -> Tensor:
    """Return the median over the first dimension, coordinate by coordinate.

    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, Definition 1. For an even number of sites it is the mean of the two middle values.

    Deviation from the paper: it takes the median of gradients; here it is the median of uploads, which differs only by
    the lent weights that all sites share.
    """
    ordered, count = stacked.sort(dim=0).values, len(stacked)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(stacked: Tensor, cut: int) -> Tensor:
    """Return the mean over the first dimension without the ``cut`` largest and smallest values of each coordinate.

    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, Definition 2. The number of values cut at each end is the number of sites that may be hostile.

    Deviations from the paper: it trims gradients; here uploads are trimmed, which differ only by the lent weights that
    all sites share. The cut is a number, not a share β of the sites.
    """
    count = len(stacked)
    if count <= 2 * cut:
        raise ValueError(f"{count} values are too few to leave out {cut} at each end")
    return stacked.sort(dim=0).values[cut : count - cut].mean(dim=0)


class Mean:
    """A weighted mean of messages (Eq. 2–3 of FedPAD with equal weights), accumulated in float64.

    Sites are added in sorted order, so the same uploads give the same bytes. With a single site the mean is exactly
    that site's upload.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._types: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, message: Message, weight: float) -> None:
        """Add one site's upload to the sums."""
        summed = [name for name in message if name in self._sums]
        if summed:
            torch._foreach_add_([self._sums[name] for name in summed], [message[name] for name in summed], alpha=weight)
        for name in [name for name in message if name not in self._sums]:
            self._sums[name] = message[name].to(torch.float64) * weight
            self._types[name] = message[name].dtype
        self._weight += weight

    def exact(self) -> Message:
        """Return the mean in float64."""
        return {name: total / self._weight for name, total in self._sums.items()}

    def result(self) -> Message:
        """Return the mean in the uploads' own types; counts are rounded to the nearest integer."""
        return {name: cast(value, self._types[name]) for name, value in self.exact().items()}


class RobustCombination:
    """A rule that compares all uploads of a round; all sites have the same weight."""

    def __init__(self, settings: Combine, base: Callable[[], Message]) -> None:
        """Start without uploads; ``base`` returns the lent weights."""
        self._settings, self._base = settings, base
        self._messages: list[Message] = []

    def add(self, message: Message, weight: float) -> None:
        """Store one site's upload."""
        self._messages.append(message)

    def exact(self) -> Message:
        """Apply the rule to all uploads."""
        settings, messages = self._settings, self._messages
        if settings.rule in ("median", "trimmed-mean"):
            stacked = {name: torch.stack([message[name].double() for message in messages]) for name in messages[0]}
            if settings.rule == "median":
                return {name: median(values) for name, values in stacked.items()}
            return {name: trimmed_mean(values, settings.hostile) for name, values in stacked.items()}
        if settings.rule == "krum":
            messages = [messages[index] for index in krum_selection(messages, settings.hostile, settings.select)]
        else:  # norm-clip to the median of the round's norms
            base = self._base()
            bound = statistics.median(norm_of_update(message, base) for message in messages)
            messages = [clip_update(message, base, bound) for message in messages]
        mean = Mean()
        for message in messages:
            mean.add(message, 1.0)
        return mean.exact()


def combination_of(federation: Federation, base: Callable[[], Message]) -> Mean | RobustCombination:
    """Return the unfinished combination that a recipe requests; uploads arrive in sorted order of sites."""
    settings = federation.combine
    if settings.rule == "mean" or (settings.rule == "norm-clip" and settings.bound is not None):
        return Mean()  # clipping to a fixed bound is a step of its own, before the mean
    return RobustCombination(settings, base)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a value in a type, rounded to the nearest integer for integer types."""
    return value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
