"""Which neuron of one network is which of another: assignment of neurons to the slots of a joint layer.

H. Wang, M. Yurochkin, Y. Sun, D. Papailiopoulos, Y. Khazaeni, "Federated learning with matched averaging", ICLR 2020,
Eq. 2 and its BBP-MAP solution: one network at a time is taken out and assigned anew to the slots that the others make,
which is a linear assignment problem, until nothing changes. The costs of a growing layer are those of M. Yurochkin et
al., "Bayesian nonparametric federated learning of neural networks", ICML 2019, with a prior mean of zero.

A layer is a matrix in which a row is a neuron: its incoming weights and its bias. A row of zeros is no neuron but a
place for one. All functions are pure; sums run in float64 in the order of the networks.
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
"""For each row of a network's layer, the slot that it takes in the joint one: a permutation."""

SWEEPS = 100
"""A guard against ties that go round: every change is for the better, so assignments settle, mostly in a few sweeps."""


@dataclass(frozen=True)
class Prior:
    """What decides whether a neuron joins a slot or opens a new one.

    ``sigma``: standard deviation of a network's neuron around its slot's; ``sigma0``: of slots around zero; ``gamma``:
    how many slots the model expects a network to fill.
    """

    sigma: float
    sigma0: float
    gamma: float


@dataclass(frozen=True)
class Joint:
    """The slots that some networks make: weighted sum of neurons, sum of weights, and number of neurons in each."""

    total: Rows
    mass: NDArray[np.float64]
    held: NDArray[np.int64]

    def mean(self) -> Rows:
        """Return the weighted mean of each slot's neurons; a slot that nobody holds is zero."""
        return self.total / np.where(self.mass > 0, self.mass, 1.0)[:, None]


@dataclass(frozen=True)
class Matched:
    """Each network's assignment, and the joint layer."""

    orders: tuple[Order, ...]
    mean: Rows


def match(layers: Sequence[Rows], weights: Sequence[float], prior: Prior | None = None) -> Matched:
    """Match the neurons of a layer of several networks; without a prior every slot is shared by all.

    The slots begin as the first network's neurons. With a prior a layer's places can be opened (growth).
    """
    everyone = range(len(layers))
    orders = [np.arange(len(layers[0]))] * len(layers)
    for number in everyone[1:]:
        others = joint(layers, orders, weights, everyone[:number])
        orders[number] = assign(layers[number], others, weights[number], len(layers), prior)
    for _ in range(SWEEPS if len(layers) > 1 else 0):
        before = list(orders)
        for number in everyone:
            others = joint(layers, orders, weights, [one for one in everyone if one != number])
            orders[number] = assign(layers[number], others, weights[number], len(layers), prior)
        if all(np.array_equal(old, new) for old, new in zip(before, orders, strict=True)):
            break
    return Matched(tuple(orders), joint(layers, orders, weights, everyone).mean())


def joint(layers: Sequence[Rows], orders: Sequence[Order], weights: Sequence[float], among: Sequence[int]) -> Joint:
    """Put some of the networks into slots."""
    total, mass, held = np.zeros_like(layers[0]), np.zeros(len(layers[0])), np.zeros(len(layers[0]), dtype=np.int64)
    for number in among:
        real = layers[number].any(axis=1)
        slots = orders[number][real]
        total[slots] += weights[number] * layers[number][real]
        mass[slots] += weights[number]
        held[slots] += 1
    return Joint(total, mass, held)


def assign(rows: Rows, others: Joint, weight: float, networks: int, prior: Prior | None) -> Order:
    """Return one network's best assignment to the slots of the others; its empty places take what slots are left."""
    real = rows.any(axis=1)
    if prior is None:
        cost = squared_distances(rows[real], others.mean())
    else:
        cost = posterior_costs(rows[real], others, weight, networks, prior)
    from scipy.optimize import linear_sum_assignment  # half a second, which every process that trains would wait for

    _, slots = linear_sum_assignment(cost)
    order = np.empty(len(rows), dtype=np.int64)
    order[real] = slots
    order[~real] = np.setdiff1d(np.arange(len(rows)), slots)
    return order


def squared_distances(rows: Rows, slots: Rows) -> Rows:
    """Eq. 2's cost: a neuron's squared distance to the mean of the neurons in each slot."""
    cost: Rows = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ slots.T + np.square(slots).sum(axis=1)
    return cost


def posterior_costs(rows: Rows, others: Joint, weight: float, networks: int, prior: Prior) -> Rows:
    """Return what each assignment takes from twice the log posterior of a beta-Bernoulli process.

    A slot that m of J networks hold has odds m / (J - m); the k-th new one is worth log(gamma / J) - log k. Either
    adds how much better a slot's most likely weights explain its neurons with this one among them.
    """
    own, slot = weight / prior.sigma**2, 1 / prior.sigma0**2 + others.mass / prior.sigma**2
    theirs = others.total / prior.sigma**2
    lengths = np.square(theirs).sum(axis=1)
    together = own**2 * np.square(rows).sum(axis=1)[:, None] + 2 * own * rows @ theirs.T + lengths
    gain = together / (own + slot) - lengths / slot
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
    """Return weight and bias of neurons, in the form of a layer's weight: the inverse of :func:`rows_of`."""
    values = torch.from_numpy(rows).to(weight.dtype)
    return values[:, :-1].reshape(weight.shape).contiguous(), values[:, -1].contiguous()


def reordered(weight: Tensor, order: Tensor) -> Tensor:
    """Return a layer's weight for inputs that come in the order of the slots."""
    moved = torch.empty_like(weight)
    moved[:, order.to(weight.device)] = weight
    return moved
