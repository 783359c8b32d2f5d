"""Norm clipping: no site moves the model further than a bound.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019, §4: an update
Δ is divided by max(1, ‖Δ‖₂/M). The update is the difference between what a site sends and what it was lent.

Deviations from the paper: M may be the median of the round's norms instead of a number that is known before; no noise
is added (that is ``federation.dp``). The norm runs over all floating-point tensors, BatchNorm statistics included, as
these decide about predictions like weights do; counters are not clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

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
