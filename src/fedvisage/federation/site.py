"""A site as a method sees it during one visit: data, a borrowed network, private state, random streams."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from fedvisage.data.batches import Positions, View, order
from fedvisage.data.rows import Texts
from fedvisage.errors import UserError
from fedvisage.federation.message import load_parts, state_of, under
from fedvisage.federation.method import Message
from fedvisage.federation.releases import Allowance, Releases
from fedvisage.nn import optimizers
from fedvisage.nn.augment import augment
from fedvisage.nn.inputs import as_float, colour_channels
from fedvisage.nn.precision import LAYOUT, Compute
from fedvisage.privacy.accountant import Charge
from fedvisage.privacy.draws import DerivedDraws, Draws, SystemDraws
from fedvisage.privacy.gaussian import Budget
from fedvisage.recipe import Recipe
from fedvisage.streams import numpy_rng, torch_rng


class TrainingBroke(Exception):
    """A site's training went wrong in a way that must not be uploaded, such as a loss that is not finite."""


@dataclass(frozen=True)
class Batch:
    """What a loss looks at: the network's input and what is known of it, on the device of the run."""

    images: Tensor
    labels: Tensor
    depth: Tensor | None
    species: Texts


@dataclass
class Site:
    """One site during one visit of the server: one order, or the several orders of a conversation.

    ``net`` is a workspace borrowed for the visit, so that a thousand sites need one model in memory. ``kept`` survives
    on the site's disk, ``scratch`` until the end of the round, ``held`` (graphs, batches) and the optimizers until the
    visit is over.
    """

    name: str
    recipe: Recipe
    round: int
    data: View
    net: nn.ModuleDict
    compute: Compute
    kept: MutableMapping[str, Tensor]
    scratch: MutableMapping[str, Any]
    releases: Releases | None = None
    held: dict[str, Any] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    lent: Message = field(default_factory=dict)
    _optimizers: dict[str, Optimizer] = field(default_factory=dict)
    _epoch: tuple[int, list[Positions]] = (-1, [])

    def load(self, message: Message) -> None:
        """Put the parts that the server lent into the workspace, and remember them as they came."""
        load_parts(self.net, message)
        self.lent = message

    def frozen(self, message: Message, *parts: str) -> nn.ModuleDict:
        """Return copies of parts with other weights, to compare with: in evaluation mode, without gradients."""
        copies = copy.deepcopy(nn.ModuleDict({part: self.net[part] for part in parts}))
        load_parts(copies, message)
        return copies.eval().requires_grad_(False)

    def tensors(self, *parts: str) -> Message:
        """Return the present state of parts, ready for an upload."""
        return state_of(self.net, *parts)

    def rng(self, *purpose: str | int) -> Generator:
        """Return the stream for a purpose of this site in this round."""
        return torch_rng(self.recipe.runtime.seed, self.name, self.round, *purpose)

    def release(self, name: str, mechanism: Callable[[Draws], Message], cost: Sequence[Charge]) -> Message:
        """Return what a mechanism of differential privacy tells under a name, drawn once for good.

        It is charged before it is drawn and stored before it is sent; beside it stands its ``cost``, to be declared.
        """
        asked = self.recipe.privacy
        if asked.epsilon is None or asked.delta is None:
            raise UserError("recipe.privacy", "names no budget; give epsilon and delta for all releases of the run")
        assert self.releases is not None, "a site without a disk releases nothing"
        draws = SystemDraws() if asked.noise == "system" else DerivedDraws(self.rng("noise", name))
        allowance = Allowance(Budget(asked.epsilon, asked.delta), asked.count)
        return self.releases.release(name, mechanism, cost, allowance, draws)

    def batches(self) -> Iterator[Batch]:
        """Go through the local work of one round: the recipe's epochs, or its number of batches.

        Which images form the k-th batch of a run is a function of (seed, site, k): there is no hidden position in the
        data that a resumed run would have to find again.
        """
        count = self.batches_per_round
        for number in range((self.round - 1) * count, self.round * count):
            yield self.batch(number)

    def next_batch(self) -> Batch:
        """Return the next batch of this round, for methods that exchange messages within it."""
        taken = self.scratch.get("batches", 0)
        self.scratch["batches"] = taken + 1
        return self.batch((self.round - 1) * self.batches_per_round + taken)

    @property
    def batches_per_epoch(self) -> int:
        """How many batches one pass over the site's data has."""
        size = self.recipe.training.batch.of(self.name)
        whole, rest = divmod(len(self.data), size)
        drops = rest == 1 and self.recipe.training.sampling == "shuffled"
        return max(1, whole + (1 if rest and not drops else 0))

    @property
    def batches_per_round(self) -> int:
        """How many batches the recipe asks of a site between two aggregations."""
        local = self.recipe.training.local
        return local.batches if local.batches is not None else (local.epochs or 1) * self.batches_per_epoch

    def batch(self, number: int) -> Batch:
        """Return the batch with this number, counted from the beginning of the run."""
        epoch, index = divmod(number, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            training = self.recipe.training
            rng = numpy_rng(self.recipe.runtime.seed, self.name, "order", epoch)
            size = training.batch.of(self.name)
            self._epoch = (epoch, order(self.data, rng, size=size, sampling=training.sampling))
        found = self.data.batch(self._epoch[1][index])
        images, depth = augment(
            as_float(found.images.to(self.compute.device)),
            None if found.depth is None else found.depth.to(self.compute.device),
            self.recipe.training.augment,
            torch_rng(self.recipe.runtime.seed, self.name, "augment", number),
        )
        ready = colour_channels(images, self.recipe.input.colour).contiguous(memory_format=LAYOUT)
        return Batch(ready, found.labels.to(self.compute.device), depth, found.species)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes in the run's precision."""
        return self.compute.autocast()

    def optimizer(self, *parts: str) -> Optimizer:
        """Return the optimizer of some parts, with its schedule's rate; kept state continues where it stopped."""
        name = "+".join(parts)
        if name not in self._optimizers:
            training = self.recipe.training
            factor = optimizers.rate_factor(training.schedule, self.round, training.rounds)
            made = optimizers.build(
                [p for part in parts for p in self.net[part].parameters()], training.optimizer, factor
            )
            state = under(f"optimizer/{name}/", self.kept)
            if state:
                optimizers.restore(made, state)
            self._optimizers[name] = made
        return self._optimizers[name]

    def step(self, optimizer: Optimizer, value: Tensor, gradient: Tensor | None = None) -> None:
        """Take one optimizer step down a loss, or down the gradient that the server sent for some output."""
        optimizer.zero_grad(set_to_none=True)
        value.backward(gradient)  # type: ignore[no-untyped-call]
        optimizers.step(optimizer, self.recipe.training.optimizer.clip_norm)
        if gradient is None:
            self.losses.append(value.detach())

    def statistics(self) -> Message:
        """Return what averaging methods declare beside weights: the number of images and the visit's mean loss."""
        mean = float(torch.stack(self.losses).double().mean()) if self.losses else 0.0
        if not math.isfinite(mean):
            raise TrainingBroke("the training loss is not finite; a lower learning rate or clip_norm may help")
        return {"examples": torch.tensor(len(self.data)), "loss": torch.tensor(mean, dtype=torch.float64)}

    def put_away(self) -> Message:
        """Return ``kept`` with what must survive the visit."""
        if self.recipe.training.optimizer.state == "kept":
            for name, optimizer in self._optimizers.items():
                for key, value in optimizers.state_of(optimizer).items():
                    self.kept[f"optimizer/{name}/{key}"] = value
        return dict(self.kept)
