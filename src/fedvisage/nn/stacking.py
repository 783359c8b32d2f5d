"""Linear classifiers on frozen features, and a classifier on their outputs: stacking (D. H. Wolpert, 1992).

Each feature vector is normalised to mean zero and variance one, so that a penalty has the same effect for every
network.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, logsigmoid

STEPS = 100
CLOSE = 1e-10
"""Newton's method stops when a step gains less than this."""


class Plane(NamedTuple):
    """A linear classifier: the live logit is weight · x + bias."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return live logits."""
        return features @ self.weight + self.bias


class Heads(nn.Module):
    """The classifiers of all sites, one per row: from features to their logits and the logit of their mean."""

    def __init__(self, sites: int, width: int) -> None:
        """Start with zero weights."""
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(sites, width)), nn.Parameter(torch.zeros(sites))

    def forward(self, features: Tensor) -> Tensor:
        """Return B × (sites + 1) logits."""
        logits = normalise_features(features).float() @ self.weight.T + self.bias
        return torch.cat([logits, logits.mean(dim=1, keepdim=True)], dim=1)


def normalise_features(features: Tensor) -> Tensor:
    """Normalise each feature vector to mean zero and variance one."""
    return layer_norm(features.float(), features.shape[-1:])


def logistic(features: Tensor, labels: Tensor, penalty: float) -> Plane:
    """Return the classifier that minimises mean loss plus penalty / 2 · (weight² + bias²), by Newton's method.

    Both classes have equal weight, regardless of their numbers of images.
    """
    inputs = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    live = labels.double()
    shares = live.mean().clamp(1e-12, 1 - 1e-12)
    counts = torch.where(live > 0, 0.5 / shares, 0.5 / (1 - shares)) / len(live)
    weights = torch.zeros(inputs.shape[1], dtype=torch.float64)
    value = _objective(inputs, live, counts, weights, penalty)
    for _ in range(STEPS):
        probability = torch.sigmoid(inputs @ weights)
        gradient = inputs.T @ (counts * (probability - live)) + penalty * weights
        hessian = (inputs * (counts * probability * (1 - probability))[:, None]).T @ inputs
        step = torch.linalg.solve(hessian + penalty * torch.eye(len(weights), dtype=torch.float64), gradient)
        # Halve the step until the objective falls; stop if no step length improves it.
        size = 1.0
        while size > 1e-6 and not _objective(inputs, live, counts, weights - size * step, penalty) < value:
            size /= 2
        if size <= 1e-6:
            break
        weights = weights - size * step
        previous, value = value, _objective(inputs, live, counts, weights, penalty)
        if previous - value < CLOSE:
            break
    return Plane(weights[:-1], weights[-1])


def loss_of(plane: Plane, features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of a classifier, with equal weight per image."""
    signs = 2 * labels.double() - 1
    return -logsigmoid(signs * plane.logits(features.double())).mean()


def _objective(inputs: Tensor, live: Tensor, counts: Tensor, weights: Tensor, penalty: float) -> Tensor:
    losses = -logsigmoid((2 * live - 1) * (inputs @ weights))
    return (counts * losses).sum() + penalty / 2 * weights.square().sum()
