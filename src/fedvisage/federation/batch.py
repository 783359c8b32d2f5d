"""Training batches: their content, their gradients within the memory of the device, and their number."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fedvisage.base.errors import UserError
from fedvisage.data.batches import Positions
from fedvisage.data.rows import Texts
from fedvisage.recipe import Recipe


@dataclass(frozen=True)
class Batch:
    """The input of a loss: images for the network and their annotations, on the device of the run."""

    images: Tensor
    """The network's input: float, B×channels×H×W, in the recipe's ``input.colour``, augmented."""
    labels: Tensor
    """1 for bona fide, 0 for an attack, as floats."""
    depth: Tensor | None
    """Depth maps, if the set has them."""
    species: Texts
    """Class of each image: ``bonafide``, or the kind of attack."""
    identities: Tensor | None = None
    """Class numbers, int64: the site's own identities, sorted, from 0, then the public ones. Identity sets only."""
    positions: Positions | None = None
    """Positions of the images in their view."""
    mirrored: Tensor | None = None
    """Mask of mirrored images, if mirroring was the only change; on the CPU."""
    class_numbers_on_cpu: Tensor | None = None
    """The class numbers on the CPU, for code that reads them without waiting for the device."""

    def tensors(self) -> Iterator[Tensor]:
        """Return the tensors on the device of the run."""
        return (value for value in (self.images, self.labels, self.depth, self.identities) if value is not None)

    @property
    def class_numbers(self) -> Tensor:
        """Return the class numbers, on the CPU if possible without waiting for the device."""
        assert self.identities is not None, "an identity set has class numbers"
        return self.identities.cpu() if self.class_numbers_on_cpu is None else self.class_numbers_on_cpu

    def parts(self, most: int | None) -> list[Batch]:
        """Return the batch in parts of nearly equal size, of ``most`` images at most; undivided without a limit."""
        count = len(self.labels)
        if most is None or count <= most:
            return [self]
        return [
            self.images_at(slice(rows[0], rows[-1] + 1)) for rows in np.array_split(range(count), -(-count // most))
        ]

    def images_at(self, rows: slice) -> Batch:
        """Return some of the batch's images, with their annotations."""
        fields = {name: value[rows] for name, value in vars(self).items() if value is not None}
        return replace(self, **fields)


# The gradient of a batch, within the memory of the device.

Loss = Callable[[Batch], Tensor]
"""The mean loss of a batch's images."""

LEAST = 2
"""Number of images in the smallest batch that a recipe may have."""


def backpropagate_parts(loss: Loss, parts: list[Batch]) -> Tensor:
    """Compute the gradients of a batch part by part, and return the loss of the whole batch."""
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


def out_of_memory_reason(error: RuntimeError) -> str | None:
    """Return the first sentence of an out-of-memory error, or None for other errors."""
    message = str(error)
    out_of_memory = isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in message
    return message.partition("\n")[0].partition(". ")[0] if out_of_memory else None


def too_large_error(optimizer: Optimizer, loss: Loss, batch: Batch, lack: str) -> UserError:
    """Return an error with the largest batch that fits: half, a quarter and so on are tried without a step."""
    count = len(batch.labels)
    fits = count // 2
    while fits >= LEAST and not _fits(optimizer, loss, batch.images_at(slice(fits))):
        fits //= 2
    optimizer.zero_grad(set_to_none=True)
    if fits < LEAST:
        return UserError(
            "recipe.training.batch",
            f"not even {LEAST} images at once fit in memory ({lack}); choose a smaller network or input.size, or "
            "another runtime.device",
        )
    return UserError(
        "recipe.training.batch",
        f"{count} images at once do not fit in memory ({lack}); {fits} do: set training.batch to {fits}, or "
        "training.micro_batch, which accumulates gradients over parts of a batch",
    )


def _fits(optimizer: Optimizer, loss: Loss, batch: Batch) -> bool:
    """Return whether a forward and a backward pass of a batch fit into memory."""
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    if batch.images.is_cuda:
        torch.cuda.empty_cache()
    try:
        backpropagate_parts(loss, [batch])
    except RuntimeError as error:
        if out_of_memory_reason(error) is None:
            raise
        return False
    return True


# Number of batches in an epoch and in a round.


def epoch_length(recipe: Recipe, site: str, images: int) -> int:
    """Return the number of batches in one pass over ``images`` images of a site."""
    full, rest = divmod(images, recipe.training.batch.of(site))
    drops = rest == 1 and recipe.training.sampling == "shuffled"
    return max(1, full + (1 if rest and not drops else 0))


def round_length(recipe: Recipe, site: str, images: int) -> int:
    """Return the number of batches that a site with ``images`` images trains on between two aggregations."""
    local = recipe.training.local
    return local.batches if local.batches is not None else (local.epochs or 1) * epoch_length(recipe, site, images)
