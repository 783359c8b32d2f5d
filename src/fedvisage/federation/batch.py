"""A batch as a loss sees it: read, changed at random, in the form and at the place in which networks take it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fedvisage.base.errors import UserError
from fedvisage.base.streams import torch_rng
from fedvisage.data.batches import Positions, View
from fedvisage.data.prepared import Texts
from fedvisage.nn import optimizers
from fedvisage.nn.augment import augment, degrade, only_mirrored
from fedvisage.nn.compute import Compute, uncompiled
from fedvisage.nn.inputs import as_float, seen
from fedvisage.recipe import Recipe, Training

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """What a loss looks at: the network's input and what is known of it, on the device of the run."""

    images: Tensor
    """As the network takes them: float, B×channels×H×W, in the recipe's ``input.colour``, augmented."""
    labels: Tensor
    """1 for bona fide, 0 for an attack, as floats."""
    depth: Tensor | None
    """Depth maps, where the set has them."""
    species: Texts
    """What each image shows: ``bonafide``, or the kind of attack."""
    identities: Tensor | None = None
    """Class numbers, int64: the site's own identities, sorted, from 0, then the public ones. Identity sets only."""
    positions: Positions | None = None
    """Where the images stand in the view that they are from."""
    mirrored: Tensor | None = None
    """Which of them are mirrored, where nothing else was done to any; on the CPU."""
    known: Tensor | None = None
    """The class numbers on the CPU, so that who has to look at them need not wait for a device."""

    def tensors(self) -> Iterator[Tensor]:
        """Return what lies on the device of the run."""
        return (value for value in (self.images, self.labels, self.depth, self.identities) if value is not None)

    @property
    def at_hand(self) -> Tensor:
        """The class numbers where they can be read at once."""
        assert self.identities is not None, "an identity set has class numbers"
        return self.identities.cpu() if self.known is None else self.known

    def parts(self, most: int | None) -> list[Batch]:
        """Return the batch in parts of nearly equal size, of so many images at most; whole, if there is no bound."""
        count = len(self.labels)
        if most is None or count <= most:
            return [self]
        return [
            self.images_at(slice(rows[0], rows[-1] + 1)) for rows in np.array_split(range(count), -(-count // most))
        ]

    def images_at(self, rows: slice) -> Batch:
        """Return some of the batch's images, with all that is known of them."""
        given = {name: value[rows] for name, value in vars(self).items() if value is not None}
        return replace(self, **given)


def read(
    view: View, positions: Positions, recipe: Recipe, compute: Compute, purpose: tuple[str | int, ...],
    classes: Positions | None,
) -> Batch:  # fmt: skip
    """Read images of a view, change them as the recipe says by draws for a purpose, and bring them to the device.

    Changes of capture work image by image and on the CPU; with them all is done there, and brought when it is done.
    """
    stored, options, seed = view.batch(positions), recipe.training.augment, recipe.runtime.seed
    where = HOST if options.changes else compute.device
    here = Compute(where, compute.half, compute.layout)
    images, depth = augment(
        as_float(here.bring(stored.images)),
        None if stored.depth is None else here.bring(stored.depth),
        options,
        torch_rng(seed, *purpose),
    )
    mirrored = only_mirrored(len(positions), options, torch_rng(seed, *purpose))
    labels, species = stored.labels, stored.species
    if options.changes:
        mixed = degrade(images, depth, labels, options.changes, torch_rng(seed, *purpose, "changes"))
        images, depth, donors = mixed.images, mixed.depth, mixed.donors
        labels = torch.where(donors >= 0, torch.zeros_like(labels), labels)
        species = np.where(donors >= 0, species[donors], species)
    ready = seen(compute.bring(images), recipe.input.colour, compute.layout)
    known = None if classes is None else torch.from_numpy(classes)
    return Batch(
        images=ready,
        labels=compute.bring(labels),
        depth=None if depth is None else compute.bring(depth),
        species=species,
        identities=None if known is None else compute.bring(known),
        positions=positions,
        mirrored=mirrored,
        known=known,
    )


# One step down a batch's loss: at once or in parts whose gradients add up, and what is said where memory ends.


Loss = Callable[[Batch], Tensor]
"""The mean loss of some images."""

LEAST = 2
"""Images of the smallest batch that a recipe may have."""


def descend(optimizer: Optimizer, loss: Loss, batch: Batch, training: Training) -> Tensor:
    """Take one step and return the batch's loss, on its device.

    With ``micro_batch`` the parts' mean losses count by their images, so that the gradient is that of the whole batch.
    """
    optimizer.zero_grad(set_to_none=True)
    parts = batch.parts(training.micro_batch)
    try:
        total = passed(loss, parts)
    except RuntimeError as error:
        if (why := uncompiled(error)) is not None:
            raise UserError("recipe.runtime.compile", f"failed on this machine ({why}); leave it out") from error
        lack = lacking(error)
        if lack is None:
            raise
    else:
        optimizers.step(optimizer, training.optimizer.clip_norm)
        return total
    # Only here, when the error and with it the step that did not fit are gone, is its memory free again.
    raise too_large(optimizer, loss, parts[0], lack)


def passed(loss: Loss, parts: list[Batch]) -> Tensor:
    """Add up the gradients of some parts of a batch; return the whole one's loss."""
    if len(parts) == 1:
        value = loss(parts[0])
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()
    images, values = sum(len(part.labels) for part in parts), []
    for part in parts:
        value = loss(part) * (len(part.labels) / images)
        value.backward()  # type: ignore[no-untyped-call]
        values.append(value.detach())
    return torch.stack(values).sum()


def lacking(error: RuntimeError) -> str | None:
    """Return what an error says of memory that there is not; none if it is about something else."""
    said = str(error)
    ended = isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in said
    return said.partition("\n")[0].partition(". ")[0] if ended else None


def too_large(optimizer: Optimizer, loss: Loss, batch: Batch, lack: str) -> UserError:
    """Say how many images would have fitted: the half, the quarter and so on are tried, without a step."""
    count = len(batch.labels)
    fits = count // 2
    while fits >= LEAST and not _fits(optimizer, loss, batch.images_at(slice(fits))):
        fits //= 2
    optimizer.zero_grad(set_to_none=True)
    if fits < LEAST:
        return UserError("recipe.training.batch", f"not even {LEAST} images at once fit into memory ({lack}); choose a "
                         "smaller network or input.size, or another runtime.device")  # fmt: skip
    return UserError("recipe.training.batch", f"{count} images at once do not fit into memory ({lack}); {fits} do: set "
                     f"training.batch to {fits}, or training.micro_batch, which adds up the gradients of a batch's "
                     "parts")  # fmt: skip


def _fits(optimizer: Optimizer, loss: Loss, batch: Batch) -> bool:
    """Try whether a batch passes forward and back."""
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if batch.images.is_cuda:
        torch.cuda.empty_cache()
    try:
        passed(loss, [batch])
    except RuntimeError as error:
        if lacking(error) is None:
            raise
        return False
    return True


# How much a site trains: batches of a pass over its data, and batches of a round.


def epoch_length(recipe: Recipe, site: str, images: int) -> int:
    """Return how many batches a pass over so many images of a site has."""
    whole, rest = divmod(images, recipe.training.batch.of(site))
    drops = rest == 1 and recipe.training.sampling == "shuffled"
    return max(1, whole + (1 if rest and not drops else 0))


def round_length(recipe: Recipe, site: str, images: int) -> int:
    """Return how many batches a site with so many images trains on between two aggregations."""
    local = recipe.training.local
    return local.batches if local.batches is not None else (local.epochs or 1) * epoch_length(recipe, site, images)
