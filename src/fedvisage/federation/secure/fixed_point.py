"""Tensors as whole numbers modulo 2^64, in which a sum is exact and a mask hides everything.

A value v that counts w becomes round(w·v·2^32). Admission allows |v| ≤ 10^6 < 2^20, and w is at most 1, so a site's
number stays below 2^52 and the sum of 2,048 sites below 2^63: nothing can overflow. Counters get 8 bits behind the
point and must stay below 2^44. Rounding moves each site's number by at most 2^-33, and so does it the mean of sites
that count alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.federation.wire.schema import ABSURD, VARIANCE, Refused

Words = NDArray[np.uint64]

FRACTION, COUNT_FRACTION = 32, 8
"""Bits behind the point, of values and of counters."""

MOST_SITES = 2048
MOST_COUNT = 2**44


def encode(name: str, value: Tensor, weight: float = 1.0) -> Words:
    """Return a tensor's numbers, multiplied by what the site counts."""
    if not value.is_floating_point() and value.numel() and int(value.max()) >= MOST_COUNT:
        raise Refused(name, f"is a count beyond {MOST_COUNT}, the most that a secure sum can hold")
    scaled = value.to(torch.float64, copy=True).mul_(weight * 2.0 ** _fraction(value.dtype)).round_()
    return scaled.to(torch.int64).reshape(-1).numpy().view(np.uint64)


def decode(total: Words, like: Tensor) -> Tensor:
    """Return what a sum of encoded tensors is worth, in float64 and in a tensor's shape."""
    numbers = torch.from_numpy(total.view(np.int64).copy()).double()
    return (numbers * 2.0 ** -_fraction(like.dtype)).reshape(like.shape)


def encode_all(tensors: Mapping[str, Tensor], weight: float, loss: Tensor) -> Words:
    """Return a whole upload: its tensors, what the site counts, and its loss, which does not count by examples."""
    words, start = np.empty(size_of(tensors), dtype=np.uint64), 0
    for name, value in tensors.items():
        words[start : start + value.numel()] = encode(name, value, weight)
        start += value.numel()
    words[-2:] = *encode("weight", torch.tensor(weight, dtype=torch.float64)), *encode("loss", loss)
    return words


def size_of(like: Mapping[str, Tensor]) -> int:
    """Return how many numbers an upload has."""
    return sum(value.numel() for value in like.values()) + 2


def decode_mean(total: Words, like: Mapping[str, Tensor], count: int) -> tuple[dict[str, Tensor], float]:
    """Return the weighted mean of ``count`` uploads in float64, and the plain mean of their losses."""
    scalar = torch.zeros((), dtype=torch.float64)
    weight = decode(total[-2:-1], scalar)
    mean, start = {}, 0
    for name, value in like.items():
        mean[name] = decode(total[start : start + value.numel()], value) / weight
        start += value.numel()
    return mean, float(decode(total[-1:], scalar)) / count


def absurd(total: Words, like: Mapping[str, Tensor], count: int) -> str | None:
    """Return what of an opened sum cannot come of so many sites that checked their numbers before they masked them.

    Single uploads cannot be looked at, but what they came to can: what a site puts under its masks instead of numbers
    is nearly always far outside.
    """
    scalar = torch.zeros((), dtype=torch.float64)
    weight, slack = float(decode(total[-2:-1], scalar)), count * 2.0**-FRACTION
    if not 0 < weight <= count + slack:
        return f"the sites count {weight:.3g} in all"
    if not abs(float(decode(total[-1:], scalar))) <= count * ABSURD:
        return "the loss is beyond all bounds"
    start = 0
    for name, value in like.items():
        low, high = -ABSURD * weight - slack, ABSURD * weight + slack
        if not value.is_floating_point():
            low, high = 0.0, MOST_COUNT * weight + count
        elif name.endswith(VARIANCE):
            low = -slack
        part = decode(total[start : start + value.numel()], value)
        if value.numel() and not (low <= float(part.min()) and float(part.max()) <= high):
            return f"{name} is beyond all bounds"
        start += value.numel()
    return None


def _fraction(dtype: torch.dtype) -> int:
    return FRACTION if dtype.is_floating_point else COUNT_FRACTION
