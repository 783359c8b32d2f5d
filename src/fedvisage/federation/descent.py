"""One step down a batch's loss: at once or in parts whose gradients add up, and what is said where memory ends."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedvisage.errors import UserError
from fedvisage.federation.batch import Batch
from fedvisage.nn import optimizers
from fedvisage.nn.compiling import uncompiled
from fedvisage.recipe import Training

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
