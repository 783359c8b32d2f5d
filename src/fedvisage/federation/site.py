"""A site as a method sees it during one visit: data, a borrowed network, private state, random streams."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from fedvisage.base.errors import UserError
from fedvisage.base.progress import OnBatch, unwatched_batch
from fedvisage.base.streams import numpy_rng, torch_rng
from fedvisage.data.batches import Positions, View, order
from fedvisage.data.prepared import Texts
from fedvisage.federation.batch import Batch as Batch
from fedvisage.federation.batch import descend, epoch_length, read, round_length
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, SystemDraws
from fedvisage.federation.record.releases import Allowance, Releases
from fedvisage.federation.secure.trust import SIMULATED, Trust
from fedvisage.federation.wire.message import Message, digest_of, load_parts, plain, state_of, under
from fedvisage.nn import optimizers
from fedvisage.nn.batchnorm import hold_statistics
from fedvisage.nn.compute import Compute, prepared
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Local, Recipe

OWNED = "own/"
"""Where parameters of the site's own stand among its private state."""


class TrainingBroke(Exception):
    """A site's training went wrong in a way that must not be uploaded, such as a loss that is not finite."""


@dataclass
class Site:
    """One site during one visit of the server: one order, or the several orders of a conversation.

    ``net`` is a workspace borrowed for the visit, so that a thousand sites need one model in memory. ``kept`` survives
    on the site's disk, ``scratch`` until the end of the round, ``held`` (graphs, batches) and the optimizers until the
    visit is over.
    """

    name: str
    """The site's name in the recipe."""
    recipe: Recipe
    """The resolved recipe; ``recipe.options(Options)`` are the method's own options."""
    round: int
    """The round, counted from 1."""
    data: View
    """The site's training images."""
    net: nn.ModuleDict
    """The workspace: all parts, of which the lent ones are to be loaded first."""
    compute: Compute
    """Device and precision."""
    kept: MutableMapping[str, Tensor]
    """Private state, which survives on the site's disk."""
    scratch: MutableMapping[str, Any]
    """What is remembered until the end of the round."""
    releases: Releases | None = None
    """The log of what was released, and what it cost."""
    test: View | None = None
    """Held-out images: of other subjects; in an identity set, other images of the same ones."""
    public: View | None = None
    """The public training images, the same at every site."""
    strangers: View | None = None
    """Images of nobody at this site, to be rejected by it."""
    common: MutableMapping[str, Any] = field(default_factory=dict)
    """What follows from lent parts and public images alone, shared by the sites of a process."""
    held: dict[str, Any] = field(default_factory=dict)
    """What is remembered until the visit is over: graphs, batches, frozen models."""
    losses: list[Tensor] = field(default_factory=list)
    """The losses of the visit's steps so far."""
    lent: Message = field(default_factory=dict)
    """What the server sent, as it came."""
    on_batch: OnBatch = unwatched_batch
    """Is told of each batch that is begun."""
    trust: Trust = SIMULATED
    """What it signs, verifies and remembers in secure sums."""
    _owned: dict[str, nn.Parameter] = field(default_factory=dict)
    _optimizers: dict[str, Optimizer] = field(default_factory=dict)
    _epoch: tuple[int, list[Positions]] = (-1, [])
    _coming: Iterator[Batch] | None = None

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

    def released(self, name: str) -> Message | None:
        """Return what was released under a name before, if anything was: it can be sent again for nothing."""
        return None if self.releases is None else self.releases.stored(name)

    def forget(self, name: str) -> None:
        """Drop a released value that nobody can ask for again; what it cost stays in the log."""
        if self.releases is not None:
            self.releases.drop(name)

    def batches(self) -> Iterator[Batch]:
        """Go through the local work of one round: the recipe's epochs, or its number of batches.

        Which images form the k-th batch of a run is a function of (seed, site, k): there is no hidden position in the
        data that a resumed run would have to find again.
        """
        count = self.batches_per_round
        return self.batches_numbered(range((self.round - 1) * count, self.round * count))

    def batches_numbered(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Go through batches by their numbers, counted from the beginning of the run."""
        coming = prepared(numbers, self._numbered, Batch.tensors, self.compute.side)
        for number in numbers:
            self._begun(number)
            yield next(coming)

    def next_batch(self) -> Batch:
        """Return the next batch of this round, for methods that exchange messages within it."""
        taken, count = self.taken, self.batches_per_round
        self.scratch["batches"] = taken + 1
        if taken >= count:  # of the next round
            return self.batch((self.round - 1) * count + taken)
        if self._coming is None:
            self._coming = self.batches_numbered(range((self.round - 1) * count + taken, self.round * count))
        return next(self._coming)

    @property
    def taken(self) -> int:
        """How many batches ``next_batch`` has given in this round, whatever visits they belong to."""
        return int(self.scratch.get("batches", 0))

    @property
    def batches_per_epoch(self) -> int:
        """How many batches one pass over the site's data has."""
        return epoch_length(self.recipe, self.name, len(self.data))

    @property
    def batches_per_round(self) -> int:
        """How many batches the recipe asks of a site between two aggregations."""
        return round_length(self.recipe, self.name, len(self.data))

    def batch(self, number: int) -> Batch:
        """Return the batch with this number, counted from the beginning of the run."""
        self._begun(number)
        return self._numbered(number)

    def _begun(self, number: int) -> None:
        count = self.batches_per_round
        self.on_batch(self.name, number % count, count)

    def _numbered(self, number: int) -> Batch:
        epoch, index = divmod(number, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            training = self.recipe.training
            rng = numpy_rng(self.recipe.runtime.seed, self.name, "order", epoch)
            size = training.batch.of(self.name)
            self._epoch = (epoch, order(self.data, rng, size=size, sampling=training.sampling))
        return self._read(self.data, self._epoch[1][index], number)

    def batches_of(self, view: View, *, epochs: int | None = None, purpose: str = "") -> Iterator[Batch]:
        """Go through one round's local work on a view that may be another in each round, or through so many epochs.

        The order is a function of (seed, site, round, epoch), and of the purpose when there is a second view.
        """
        named = (purpose,) if purpose else ()
        local = self.recipe.training.local if epochs is None else Local(epochs=epochs)

        def make(key: tuple[int, Positions]) -> Batch:
            return self._read(view, key[1], *named, self.round, key[0])

        told, made = itertools.tee(self._ordered(view, local, named))
        coming = prepared(((taken, positions) for taken, positions, _ in made), make, Batch.tensors, self.compute.side)
        for taken, _, of in told:
            self.on_batch(self.name, taken, of)
            yield next(coming)

    def _ordered(self, view: View, local: Local, named: tuple[str, ...]) -> Iterator[tuple[int, Positions, int]]:
        """Return for each batch of a round's work on a view its number, its images, and how many batches there are."""
        taken = 0
        for epoch in itertools.count():
            if epoch == local.epochs:
                return
            rng = numpy_rng(self.recipe.runtime.seed, self.name, "order", *named, self.round, epoch)
            ordered = order(view, rng, size=self.recipe.training.batch.of(self.name), sampling="shuffled")
            for positions in ordered:
                if taken == local.batches:
                    return
                yield taken, positions, local.batches or (local.epochs or 1) * len(ordered)
                taken += 1

    def _read(self, view: View, positions: Positions, *stream: str | int) -> Batch:
        """Read and augment images of a view, and put them in the form that networks take."""
        classes = self.classes_of(view.subjects[positions]) if view.of_identities else None
        return read(view, positions, self.recipe, self.compute, (self.name, "augment", *stream), classes)

    def classes_of(self, subjects: Texts) -> NDArray[np.int64]:
        """Return class numbers: the site's own identities, sorted, from 0, then the public ones."""
        own = self.data.identities
        at = np.minimum(np.searchsorted(own, subjects), len(own) - 1)
        classes = np.where(own[at] == subjects, at, -1)
        if (classes < 0).any():
            assert self.public is not None, "an image of somebody who is neither the site's nor public"
            others = np.searchsorted(self.public.identities, subjects) + len(own)
            classes = np.where(classes < 0, others, classes)
        return classes.astype(np.int64)

    def embed(self, network: nn.Module, view: View) -> Tensor:
        """Return a network's features of a view's images in order, as plain floats on the CPU; nothing is trained."""
        was, size = network.training, self.recipe.evaluation.batch
        network.eval()
        features = []
        with torch.inference_mode(), self.autocast():
            for start in range(0, len(view), size):
                images = view.batch(np.arange(start, min(start + size, len(view)))).images
                ready = prepare(images, self.recipe.input.colour, self.compute.device, self.compute.layout)
                features.append(network(ready).float().cpu())
        network.train(was)
        if was and self.recipe.training.statistics == "frozen":
            hold_statistics(network)
        return torch.cat(features).clone()

    def public_features(self, part: str) -> NDArray[np.float32]:
        """Return what a part, as it was lent, makes of the public images: worked out once for all sites of a process.

        Real sites work it out each for itself; it holds nothing of any of them.
        """
        assert self.public is not None, "there are no public images"
        lent = digest_of(under(f"{part}.", self.lent))
        if self.common.get("lent") != lent:
            self.common["lent"], self.common["features"] = lent, self.embed(self.net[part], self.public).numpy()
        features: NDArray[np.float32] = self.common["features"]
        return features

    def own(self, name: str, make: Callable[[], Tensor]) -> nn.Parameter:
        """Return a parameter that is the site's alone, made in its first turn and kept from turn to turn.

        For what has a size that the server does not know, such as a class centre for each of the site's identities. It
        is no part of the network, and nothing sends it but a call that declares it.
        """
        if name not in self._owned:
            value = self.kept[f"{OWNED}{name}"] if f"{OWNED}{name}" in self.kept else make()
            self._owned[name] = nn.Parameter(value.detach().to(self.compute.device, copy=True))
        return self._owned[name]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes in the run's precision."""
        return self.compute.autocast()

    def optimizer(self, *parts: str, own: Sequence[str] = ()) -> Optimizer:
        """Return the optimizer of some parts, and of own parameters by name, with its schedule's rate.

        Kept state continues where it stopped.
        """
        name = "+".join((*parts, *own))
        if name not in self._optimizers:
            training = self.recipe.training
            factor = optimizers.rate_factor(training.schedule, self.round, training.rounds)
            made = optimizers.build(
                [p for part in parts for p in self.net[part].parameters()] + [self._owned[one] for one in own],
                training.optimizer,
                factor,
            )
            state = under(f"optimizer/{name}/", self.kept)
            if state:
                optimizers.restore(made, state)
            self._optimizers[name] = made
        return self._optimizers[name]

    @property
    def rate(self) -> float:
        """The learning rate of this round."""
        training = self.recipe.training
        return training.optimizer.lr * optimizers.rate_factor(training.schedule, self.round, training.rounds)

    def learn(self, optimizer: Optimizer, loss: Callable[[Batch], Tensor], batch: Batch) -> None:
        """Take one optimizer step down a batch's mean loss, in the parts of it that the recipe says."""
        self.losses.append(descend(optimizer, loss, batch, self.recipe.training))

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
        self.kept.update({f"{OWNED}{name}": plain(value) for name, value in self._owned.items()})
        if self.recipe.training.optimizer.state == "kept":
            for name, optimizer in self._optimizers.items():
                for key, value in optimizers.state_of(optimizer).items():
                    self.kept[f"optimizer/{name}/{key}"] = value
        return dict(self.kept)
