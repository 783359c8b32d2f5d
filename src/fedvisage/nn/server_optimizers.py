"""Steps of the server: from the present weights towards the mean of what sites made of them.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2 (FedOpt): Δ, the mean less the present weights, stands for a gradient. With SGD at
rate 1 and without momentum the step ends at the mean, which is federated averaging. Adam and Yogi have no correction
of their moments' bias, and v begins with τ².
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedvisage.recipe import ServerOptimizer


def advance(
    settings: ServerOptimizer, present: Tensor, mean: Tensor, moments: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return new weights in the type of the present ones, and the moments in float64, for one tensor."""
    weights = present.double()
    delta = mean.double() - weights
    if settings.name == "sgd":
        if not settings.momentum:
            return (weights + settings.lr * delta).to(present.dtype), {}
        first = settings.momentum * moments.get("first", torch.zeros_like(delta)) + delta
        return (weights + settings.lr * first).to(present.dtype), {"first": first}
    square, tau = delta.square(), settings.tau
    first = settings.beta1 * moments.get("first", torch.zeros_like(delta)) + (1 - settings.beta1) * delta
    before = moments.get("second", torch.full_like(delta, tau**2))
    if settings.name == "adam":
        second = settings.beta2 * before + (1 - settings.beta2) * square
    else:
        second = before - (1 - settings.beta2) * square * torch.sign(before - square)
    stepped = weights + settings.lr * first / (second.sqrt() + tau)
    return stepped.to(present.dtype), {"first": first, "second": second}
