"""How uploads become one: a mean that is folded in site by site, so that memory does not grow with the sites."""

from __future__ import annotations

import torch
from torch import Tensor

from fedvisage.federation.method import Message


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

    def result(self) -> Message:
        """Return the mean in the uploads' own types; counts are rounded to the nearest whole number."""
        return {name: _cast(total / self._weight, self._types[name]) for name, total in self._sums.items()}


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if dtype.is_floating_point else value.round().to(dtype)
