"""Linear classifiers on frozen features, and one more on what they say: stacking (D. H. Wolpert, 1992).

Features are brought to mean zero and variance one, each by itself, so that a penalty means the same for every network.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, logsigmoid

STEPS = 100
CLOSE = 1e-10
"""A step of Newton's that gains less ends the search."""


class Plane(NamedTuple):
    """A linear classifier: the live logit is weight · x + bias."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return live logits."""
        return features @ self.weight + self.bias


class Heads(nn.Module):
    """The classifiers of all sites, a row each: features to their logits, and the logit of their mean."""

    def __init__(self, sites: int, width: int) -> None:
        """Begin undecided."""
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(sites, width)), nn.Parameter(torch.zeros(sites))

    def forward(self, features: Tensor) -> Tensor:
        """Return B × (sites + 1) logits."""
        logits = scaled(features).float() @ self.weight.T + self.bias
        return torch.cat([logits, logits.mean(dim=1, keepdim=True)], dim=1)


def scaled(features: Tensor) -> Tensor:
    """Return features of mean zero and variance one, each by itself."""
    return layer_norm(features.float(), features.shape[-1:])


def logistic(features: Tensor, labels: Tensor, penalty: float) -> Plane:
    """Return the classifier with the least mean loss and penalty / 2 · (weight² + bias²), by Newton's method.

    Both classes count alike, however many images each has.
    """
    inputs = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    live = labels.double()
    shares = live.mean().clamp(1e-12, 1 - 1e-12)
    counts = torch.where(live > 0, 0.5 / shares, 0.5 / (1 - shares)) / len(live)
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64)
    value = _objective(inputs, live, counts, weights, penalty)
    for _ in range(STEPS):
        chance = torch.sigmoid(inputs @ weights)
        slope = inputs.T @ (counts * (chance - live)) + penalty * weights
        curve = (inputs * (counts * chance * (1 - chance))[:, None]).T @ inputs
        step = torch.linalg.solve(curve + penalty * torch.eye(len(weights), dtype=torch.float64), slope)
        size = 1.0
        while size > 1e-6 and not _objective(inputs, live, counts, weights - size * step, penalty) < value:
            size /= 2
        if size <= 1e-6:
            break
        weights = weights - size * step
        before, value = value, _objective(inputs, live, counts, weights, penalty)
        if before - value < CLOSE:
            break
    return Plane(weights[:-1], weights[-1])


def loss_of(plane: Plane, features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of a classifier, each image counting alike."""
    signs = 2 * labels.double() - 1
    return -logsigmoid(signs * plane.logits(features.double())).mean()


def _objective(inputs: Tensor, live: Tensor, counts: Tensor, weights: Tensor, penalty: float) -> Tensor:
    losses = -logsigmoid((2 * live - 1) * (inputs @ weights))
    return (counts * losses).sum() + penalty / 2 * weights.square().sum()
