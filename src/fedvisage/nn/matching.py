"""Matching of neurons between networks: assignment of neurons to the slots of a joint layer.

H. Wang, M. Yurochkin, Y. Sun, D. Papailiopoulos, Y. Khazaeni, "Federated learning with matched averaging", ICLR 2020,
Eq. 2 and its BBP-MAP solution: remove one network at a time and reassign it to the slots formed by the others, which is
a linear assignment problem, until nothing changes. The costs of a growing layer are those of M. Yurochkin et al.,
"Bayesian nonparametric federated learning of neural networks", ICML 2019, with a prior mean of zero.

A layer is a matrix with one row per neuron: its incoming weights and its bias. A row of zeros is not a neuron but an
empty place. All functions are pure; sums run in float64 in the order of the networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows = NDArray[np.float64]
Order = NDArray[np.int64]
"""The slot of each row of a network's layer in the joint layer: a permutation."""

SWEEPS = 100
"""Limit against cycles between ties: every change is an improvement, so assignments settle, mostly in a few sweeps."""


@dataclass(frozen=True)
class Prior:
    """Parameters that determine whether a neuron joins a slot or opens a new one.

    ``sigma``: standard deviation of a network's neuron around its slot; ``sigma0``: of slots around zero; ``gamma``:
    expected number of slots that a network fills.
    """

    sigma: float
    sigma0: float
    gamma: float


@dataclass(frozen=True)
class JointLayer:
    """The slots formed by several networks: weighted sum of neurons, sum of weights, and number of neurons per slot."""

    total: Rows
    mass: NDArray[np.float64]
    held: NDArray[np.int64]

    def mean(self) -> Rows:
        """Return the weighted mean of each slot's neurons; an empty slot is zero."""
        return self.total / np.where(self.mass > 0, self.mass, 1.0)[:, None]


@dataclass(frozen=True)
class MatchResult:
    """The assignment of each network, and the joint layer."""

    orders: tuple[Order, ...]
    mean: Rows


def match_neurons(layers: Sequence[Rows], weights: Sequence[float], prior: Prior | None = None) -> MatchResult:
    """Match the neurons of a layer of several networks; without a prior all networks share every slot.

    The slots start as the first network's neurons. With a prior, empty places of a layer can be opened (growth).
    """
    everyone = range(len(layers))
    orders = [np.arange(len(layers[0]))] * len(layers)
    for number in everyone[1:]:
        joint_of_others = combine_slots(layers, orders, weights, everyone[:number])
        orders[number] = assign(layers[number], joint_of_others, weights[number], len(layers), prior)
    # Reassign one network at a time until a sweep changes nothing.
    for _ in range(SWEEPS if len(layers) > 1 else 0):
        previous = list(orders)
        for number in everyone:
            joint_of_others = combine_slots(layers, orders, weights, [index for index in everyone if index != number])
            orders[number] = assign(layers[number], joint_of_others, weights[number], len(layers), prior)
        if all(np.array_equal(old, new) for old, new in zip(previous, orders, strict=True)):
            break
    return MatchResult(tuple(orders), combine_slots(layers, orders, weights, everyone).mean())


def combine_slots(
    layers: Sequence[Rows], orders: Sequence[Order], weights: Sequence[float], among: Sequence[int]
) -> JointLayer:
    """Combine the neurons of some of the networks into slots."""
    total, mass, held = np.zeros_like(layers[0]), np.zeros(len(layers[0])), np.zeros(len(layers[0]), dtype=np.int64)
    for number in among:
        real = layers[number].any(axis=1)
        slots = orders[number][real]
        total[slots] += weights[number] * layers[number][real]
        mass[slots] += weights[number]
        held[slots] += 1
    return JointLayer(total, mass, held)


def assign(rows: Rows, others: JointLayer, weight: float, networks: int, prior: Prior | None) -> Order:
    """Return one network's best assignment to the slots of the others; its empty places take the remaining slots."""
    real = rows.any(axis=1)
    if prior is None:
        cost = squared_distances(rows[real], others.mean())
    else:
        cost = posterior_costs(rows[real], others, weight, networks, prior)
    # Imported here because it would delay every training process by half a second.
    from scipy.optimize import linear_sum_assignment

    _, slots = linear_sum_assignment(cost)
    order = np.empty(len(rows), dtype=np.int64)
    order[real] = slots
    order[~real] = np.setdiff1d(np.arange(len(rows)), slots)
    return order


def squared_distances(rows: Rows, slots: Rows) -> Rows:
    """Return Eq. 2's cost: the squared distance of each neuron to the mean of the neurons in each slot."""
    cost: Rows = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ slots.T + np.square(slots).sum(axis=1)
    return cost


def posterior_costs(rows: Rows, others: JointLayer, weight: float, networks: int, prior: Prior) -> Rows:
    """Return the cost of each assignment: the negative change of twice the log posterior of a beta-Bernoulli process.

    A slot held by m of J networks has odds m / (J - m); the k-th new slot contributes log(gamma / J) - log k. To either
    is added the gain in likelihood of the slot's neurons, at its most likely weights, from including this neuron.
    """
    precision, slot_precisions = weight / prior.sigma**2, 1 / prior.sigma0**2 + others.mass / prior.sigma**2
    slot_sums = others.total / prior.sigma**2
    lengths = np.square(slot_sums).sum(axis=1)
    together = precision**2 * np.square(rows).sum(axis=1)[:, None] + 2 * precision * rows @ slot_sums.T + lengths
    gain = together / (precision + slot_precisions) - lengths / slot_precisions
    opened = others.held > 0
    new = np.cumsum(~opened)
    popular = np.log(np.where(opened, others.held / (networks - others.held), 1.0))
    fresh = np.log(prior.gamma / networks) - np.log(np.maximum(new, 1))
    cost: Rows = -(gain + 2 * np.where(opened, popular, fresh))
    return cost


def rows_of(weight: Tensor, bias: Tensor) -> Rows:
    """Return a layer's neurons as rows."""
    rows: Rows = torch.cat([weight.flatten(1), bias[:, None]], dim=1).double().cpu().numpy()
    return rows


def weights_of(rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of neurons in the shape of a layer's weight: the inverse of :func:`rows_of`."""
    values = torch.from_numpy(rows).to(weight.dtype)
    return values[:, :-1].reshape(weight.shape).contiguous(), values[:, -1].contiguous()


def reorder_inputs(weight: Tensor, order: Tensor) -> Tensor:
    """Return a layer's weight for inputs in the order of the slots."""
    moved = torch.empty_like(weight)
    moved[:, order.to(weight.device)] = weight
    return moved
