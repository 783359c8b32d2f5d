"""A site during one visit, as methods see it: data, a borrowed network, private state and random streams."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from fedvisage.base.errors import UserError
from fedvisage.base.progress import OnBatch, discard_batches
from fedvisage.base.streams import numpy_rng, torch_rng
from fedvisage.data.batches import Positions, View, epoch_batches
from fedvisage.data.rows import Texts
from fedvisage.federation.batch import Batch as Batch
from fedvisage.federation.batch import (
    backpropagate_parts,
    epoch_length,
    out_of_memory_reason,
    round_length,
    too_large_error,
)
from fedvisage.federation.privacy.accountant import Charge
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws, Draws, SystemDraws
from fedvisage.federation.record.releases import Allowance, Releases
from fedvisage.federation.secure.trust import SIMULATED_TRUST, Trust
from fedvisage.federation.wire.message import Message, digest_of, load_parts, state_of, under
from fedvisage.nn import optimizers
from fedvisage.nn.augment import augment, degrade, draw_mirrored_only
from fedvisage.nn.batchnorm import hold_statistics
from fedvisage.nn.compute import Compute, compilation_failure, prefetch
from fedvisage.nn.inputs import as_float, network_input, prepare
from fedvisage.recipe import Augment, Local, Recipe

HOST = torch.device("cpu")
OWNED = "own/"
"""Prefix of the site's own parameters in its private state."""


class TrainingFailed(Exception):
    """A failure of a site's training whose result must not be uploaded, such as a loss that is not finite."""


@dataclass
class Site:
    """One site during one visit of the server: one order, or the several orders of a conversation.

    ``net`` is a workspace borrowed for the visit, so that a thousand sites need one model in memory. ``kept`` survives
    on the site's disk, ``scratch`` until the end of the round, ``held`` (graphs, batches) and the optimizers until the
    end of the visit.
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
    """The workspace with all parts; lent parts are blank until ``load``."""
    compute: Compute
    """Device and precision."""
    kept: MutableMapping[str, Tensor]
    """Private state, stored on the site's disk; a value from the run's device may return on the CPU."""
    scratch: MutableMapping[str, Any]
    """Values that last until the end of the round."""
    releases: Releases | None = None
    """The log of released values and their cost."""
    test: View | None = None
    """Held-out images: of other subjects; in an identity set, other images of the same ones."""
    public: View | None = None
    """The public training images, the same at every site."""
    strangers: View | None = None
    """Images of people outside this site, which its model must reject."""
    unseen: View | None = None
    """Images of held-out people, for the comparison of start and result in recognition."""
    common: MutableMapping[str, Any] = field(default_factory=dict)
    """Optimizers, and results that depend only on lent parts and public images, shared by the sites of a process."""
    held: dict[str, Any] = field(default_factory=dict)
    """Values that last until the end of the visit: graphs, batches, frozen models."""
    losses: list[Tensor] = field(default_factory=list)
    """The losses of the visit's steps so far."""
    lent: Message = field(default_factory=dict)
    """The parts from the server, unchanged."""
    on_batch: OnBatch = discard_batches
    """Called at the start of each batch."""
    trust: Trust = SIMULATED_TRUST
    """Keys for signing and verifying in secure sums, and the memory of previous ones."""
    _owned: dict[str, nn.Parameter] = field(default_factory=dict)
    _optimizers: dict[str, Optimizer] = field(default_factory=dict)
    _epoch: tuple[int, list[Positions]] = (-1, [])
    _coming: Iterator[Batch] | None = None

    def load(self, message: Message) -> None:
        """Load the parts from the server into the workspace, and keep an unchanged copy in ``lent``."""
        load_parts(self.net, message)
        self.lent = message

    def frozen(self, message: Message, *parts: str) -> nn.ModuleDict:
        """Return copies of parts with other weights for comparisons: in evaluation mode, without gradients."""
        copies = copy.deepcopy(nn.ModuleDict({part: self.net[part] for part in parts}))
        load_parts(copies, message)
        return copies.eval().requires_grad_(False)

    def tensors(self, *parts: str) -> Message:
        """Return the current state of parts, ready for an upload."""
        return state_of(self.net, *parts)

    def rng(self, *purpose: str | int) -> Generator:
        """Return the stream for a purpose of this site in this round."""
        return torch_rng(self.recipe.runtime.seed, self.name, self.round, *purpose)

    def release(
        self,
        name: str,
        mechanism: Callable[[Draws], Message],
        cost: Sequence[Charge],
        allowance: Allowance | None = None,
        forget: str | None = None,
    ) -> Message:
        """Return the output of a differentially private mechanism under a name; it is drawn only once.

        The cost is charged before the draw, and the output is stored before it is sent. The result includes its
        ``cost``, which the method must declare. The allowance is by default that of ``privacy``. ``forget`` names an
        earlier output that no checkpoint can request again; it is deleted after a new draw.
        """
        settings = self.recipe.privacy
        if allowance is None:
            if settings.epsilon is None or settings.delta is None:
                raise UserError(
                    "recipe.privacy", "does not set a budget; give epsilon and delta for all releases of the run"
                )
            allowance = Allowance(Budget(settings.epsilon, settings.delta), settings.count)
        assert self.releases is not None, "a site without a disk releases nothing"
        draws = SystemDraws() if settings.noise == "system" else DerivedDraws(self.rng("noise", name))
        return self.releases.release(name, mechanism, cost, allowance, draws, forget)

    def released(self, name: str) -> Message | None:
        """Return the value released earlier under a name, or None; sending it again costs nothing."""
        return None if self.releases is None else self.releases.find(name)

    def batches(self) -> Iterator[Batch]:
        """Iterate over the local work of one round: the recipe's epochs, or its number of batches.

        The images of the k-th batch of a run are a function of (seed, site, k), so a resumed run has no hidden position
        in the data to restore.
        """
        count = self.batches_per_round
        return self.batches_numbered(range((self.round - 1) * count, self.round * count))

    def batches_numbered(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Iterate over batches by their numbers, counted from the beginning of the run."""
        batches = prefetch(numbers, self._read_numbered, Batch.tensors, self.compute.prefetcher)
        count = self.batches_per_round
        for number in numbers:
            self.on_batch(self.name, number % count, count)
            yield next(batches)

    def next_batch(self) -> Batch:
        """Return the next batch of this round, for methods that exchange messages within a round."""
        position, count = self.batches_taken, self.batches_per_round
        self.scratch["batches"] = position + 1
        if position >= count:  # the round's batches are used up; go on with those of the next round
            return self.batch((self.round - 1) * count + position)
        if self._coming is None:
            self._coming = self.batches_numbered(range((self.round - 1) * count + position, self.round * count))
        return next(self._coming)

    @property
    def batches_taken(self) -> int:
        """Return the number of batches that ``next_batch`` has returned in this round, over all visits."""
        return int(self.scratch.get("batches", 0))

    @property
    def batches_per_epoch(self) -> int:
        """Return the number of batches in one pass over the site's data."""
        return epoch_length(self.recipe, self.name, len(self.data))

    @property
    def batches_per_round(self) -> int:
        """Return the number of batches that a site trains on between two aggregations."""
        return round_length(self.recipe, self.name, len(self.data))

    def batch(self, number: int) -> Batch:
        """Return the batch with a number, counted from the beginning of the run."""
        self.on_batch(self.name, number % self.batches_per_round, self.batches_per_round)
        return self._read_numbered(number)

    def _read_numbered(self, number: int) -> Batch:
        epoch, index = divmod(number, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            training = self.recipe.training
            rng = numpy_rng(self.recipe.runtime.seed, self.name, "order", epoch)
            size = training.batch.of(self.name)
            self._epoch = (epoch, epoch_batches(self.data, rng, size=size, sampling=training.sampling))
        return self._read(self.data, self._epoch[1][index], number)

    def batches_of(self, view: View, *, epochs: int | None = None, purpose: str = "") -> Iterator[Batch]:
        """Iterate over one round's local work on a view that can change between rounds, or over ``epochs`` epochs.

        The order is a function of (seed, site, round, epoch), and of the purpose for a second view.
        """
        purposes = (purpose,) if purpose else ()
        local = self.recipe.training.local if epochs is None else Local(epochs=epochs)

        def make(key: tuple[int, Positions]) -> Batch:
            return self._read(view, key[1], *purposes, self.round, key[0])

        progress_steps, read_steps = itertools.tee(self._order_batches(view, local, purposes))
        batches = prefetch(
            ((number, positions) for number, positions, _ in read_steps), make, Batch.tensors, self.compute.prefetcher
        )
        for number, _, total in progress_steps:
            self.on_batch(self.name, number, total)
            yield next(batches)

    def _order_batches(
        self, view: View, local: Local, purposes: tuple[str, ...]
    ) -> Iterator[tuple[int, Positions, int]]:
        """Yield for each batch of a round's work on a view its number, its images, and the number of all batches."""
        number = 0
        for epoch in itertools.count():
            if epoch == local.epochs:
                return
            rng = numpy_rng(self.recipe.runtime.seed, self.name, "order", *purposes, self.round, epoch)
            ordered = epoch_batches(view, rng, size=self.recipe.training.batch.of(self.name), sampling="shuffled")
            if not ordered:  # a single image is no batch
                return
            for positions in ordered:
                if number == local.batches:
                    return
                yield number, positions, local.batches or (local.epochs or 1) * len(ordered)
                number += 1

    def images_at(self, positions: Positions, *stream: str | int) -> Batch:
        """Return training images at these positions, for local work without batches; the stream augments them."""
        return self._read(self.data, positions, *stream)

    def plain_batches(self, view: View) -> Iterator[Batch]:
        """Iterate once over all images of a view, in order and without augmentation, to evaluate a loss."""
        size = self.recipe.evaluation.batch
        for start in range(0, len(view), size):
            yield self._read(view, np.arange(start, min(start + size, len(view))), changes=Augment())

    def _read(self, view: View, positions: Positions, *stream: str | int, changes: Augment | None = None) -> Batch:
        """Read images of a view, augment them as the recipe or ``changes`` tell, and convert them to network inputs."""
        stored, compute, recipe = view.batch(positions), self.compute, self.recipe
        options = recipe.training.augment if changes is None else changes
        seed, purpose = recipe.runtime.seed, (self.name, "augment", *stream)
        # Changes of capture work on single images on the CPU; a recipe with such changes augments there.
        augmenting = replace(compute, device=HOST) if options.changes else compute
        # Augmentation and the mirror mask use two streams of the same purpose, so the mask matches the draws.
        images, depth = augment(
            as_float(augmenting.bring(stored.images)),
            None if stored.depth is None else augmenting.bring(stored.depth),
            options,
            torch_rng(seed, *purpose),
        )
        mirrored = draw_mirrored_only(len(positions), options, torch_rng(seed, *purpose))
        labels, species = stored.labels, stored.species
        # A pasted square of an attack makes its image an attack of the donor's kind.
        if options.changes:
            mixed = degrade(images, depth, labels, options.changes, torch_rng(seed, *purpose, "changes"))
            images, depth, donors = mixed.images, mixed.depth, mixed.donors
            labels = torch.where(donors >= 0, torch.zeros_like(labels), labels)
            species = np.where(donors >= 0, species[donors], species)
        classes = torch.from_numpy(self.classes_of(view.subjects[positions])) if view.of_identities else None
        return Batch(
            images=network_input(compute.bring(images), recipe.input.colour, compute.layout),
            labels=compute.bring(labels),
            depth=None if depth is None else compute.bring(depth),
            species=species,
            identities=None if classes is None else compute.bring(classes),
            positions=positions,
            mirrored=mirrored,
            class_numbers_on_cpu=classes,
        )

    def classes_of(self, subjects: Texts) -> NDArray[np.int64]:
        """Return class numbers: first the site's own identities, sorted, from 0, then the public ones."""
        identities = self.data.identities
        positions = np.minimum(np.searchsorted(identities, subjects), len(identities) - 1)
        classes = np.where(identities[positions] == subjects, positions, -1)
        if (classes < 0).any():
            assert self.public is not None, "unknown image: neither in the site's set nor public"
            public_classes = np.searchsorted(self.public.identities, subjects) + len(identities)
            classes = np.where(classes < 0, public_classes, classes)
        return classes.astype(np.int64)

    def embed(self, network: nn.Module, view: View) -> Tensor:
        """Return a network's features of a view's images in order, as float32 on the CPU, without training it."""
        was_training, size = network.training, self.recipe.evaluation.batch
        network.eval()

        def read(start: int) -> Tensor:
            images = view.batch(np.arange(start, min(start + size, len(view)))).images
            return prepare(images, self.recipe.input.colour, self.compute.device, self.compute.layout)

        with torch.inference_mode(), self.autocast():
            batches = prefetch(range(0, len(view), size), read, lambda images: [images], self.compute.prefetcher)
            features = torch.cat([network(images).float() for images in batches]).cpu()
        network.train(was_training)
        if was_training and self.recipe.training.statistics == "frozen":
            hold_statistics(network)
        return features.clone()

    def public_features(self, part: str) -> NDArray[np.float32]:
        """Return a lent part's features of the public images, calculated once for all sites of a process.

        Every real site calculates them itself; they contain nothing of any site.
        """
        assert self.public is not None, "there are no public images"
        lent = digest_of(under(f"{part}.", self.lent))
        if self.common.get("lent") != lent:
            self.common["lent"], self.common["features"] = lent, self.embed(self.net[part], self.public).numpy()
        features: NDArray[np.float32] = self.common["features"]
        return features

    def own(self, name: str, make: Callable[[], Tensor]) -> nn.Parameter:
        """Return a parameter of this site only, created in the first visit and kept between visits.

        For sizes that the server does not know, such as a class centre per identity of the site. The parameter is no
        part of the network, and only a call that declares it can send it.
        """
        if name not in self._owned:
            value = self.kept[f"{OWNED}{name}"] if f"{OWNED}{name}" in self.kept else make()
            self._owned[name] = nn.Parameter(value.detach().to(self.compute.device, copy=True))
        return self._owned[name]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes in the run's precision."""
        return self.compute.autocast()

    def optimizer(self, *parts: str, own: Sequence[str] = ()) -> Optimizer:
        """Return the optimizer of network parts, and of own parameters by name, with the rate of the schedule.

        Kept state continues from the previous round.
        """
        name = "+".join((*parts, *own))
        if name not in self._optimizers:
            training = self.recipe.training
            factor = optimizers.rate_factor(training.schedule, self.round, training.rounds)
            parameters = [p for part in parts for p in self.net[part].parameters()] + [self._owned[key] for key in own]
            # The sites of a process use an optimizer in turn; a large one would occupy memory between visits.
            shared = not own and training.optimizer.state == "fresh" and optimizers.are_small(parameters)
            used: dict[str, Optimizer] = self.common.setdefault("optimizers", {}) if shared else {}
            optimizer = optimizers.renewed(used.get(name), parameters, training.optimizer, factor)
            used[name] = optimizer
            state = under(f"optimizer/{name}/", self.kept)
            if state:
                optimizers.restore(optimizer, state)
            self._optimizers[name] = optimizer
        return self._optimizers[name]

    @property
    def rate(self) -> float:
        """Return the learning rate of this round."""
        training = self.recipe.training
        return training.optimizer.lr * optimizers.rate_factor(training.schedule, self.round, training.rounds)

    def learn(self, optimizer: Optimizer, loss: Callable[[Batch], Tensor], batch: Batch) -> None:
        """Take one optimizer step down a batch's mean loss, in parts if the recipe sets ``micro_batch``.

        Each part's mean loss is weighted by its number of images, so that the gradient is that of the whole batch.
        """
        optimizer.zero_grad(set_to_none=True)
        parts = batch.parts(self.recipe.training.micro_batch)
        try:
            value = backpropagate_parts(loss, parts)
        except RuntimeError as error:
            if (why := compilation_failure(error)) is not None:
                raise UserError("recipe.runtime.compile", f"failed on this machine ({why}); leave it out") from error
            lack = out_of_memory_reason(error)
            if lack is None:
                raise
        else:
            optimizers.step(optimizer, self.recipe.training.optimizer.clip_norm)
            self.losses.append(value)
            return
        # Search for a fitting size only here: the error, and with it the failed step's memory, has been freed.
        raise too_large_error(optimizer, loss, parts[0], lack)

    def step(self, optimizer: Optimizer, value: Tensor, gradient: Tensor | None = None) -> None:
        """Take one optimizer step down a loss, or down the server's gradient for an output."""
        optimizer.zero_grad(set_to_none=True)
        value.backward(gradient)  # type: ignore[no-untyped-call]
        optimizers.step(optimizer, self.recipe.training.optimizer.clip_norm)
        if gradient is None:
            self.losses.append(value.detach())

    def statistics(self) -> Message:
        """Return the statistics that averaging methods declare: the number of images and the visit's mean loss."""
        mean = float(torch.stack(self.losses).double().mean()) if self.losses else 0.0
        if not math.isfinite(mean):
            raise TrainingFailed("the training loss is not finite; a lower learning rate or clip_norm may help")
        return {"examples": torch.tensor(len(self.data)), "loss": torch.tensor(mean, dtype=torch.float64)}

    def private_state(self) -> Message:
        """Return ``kept`` with all values that must survive the visit; weights and moments are not copied."""
        self.kept.update({f"{OWNED}{name}": value.detach() for name, value in self._owned.items()})
        if self.recipe.training.optimizer.state == "kept":
            for name, optimizer in self._optimizers.items():
                for key, value in optimizers.state_of(optimizer).items():
                    self.kept[f"optimizer/{name}/{key}"] = value
        return dict(self.kept)
