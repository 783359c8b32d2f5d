"""The prepared crops on which an export is compared with torch, and on which an int8 graph is calibrated and judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.batches import View
from fedvisage.data.checked import check_bytes
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import select, without_selection
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.errors import UserError
from fedvisage.progress import Say
from fedvisage.tasks.crops import check_for_model
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.recognition.shares import share_of

COMPARED = 10
"""Crops on which graph and torch are compared."""


def view_of(model: FinishedModel, entry: str, place: str, cache: Path, say: Say) -> View:
    """Open a set for a model, whole, by the option or recipe's key that names it."""
    name, part = without_part(entry.strip())
    source, meant = without_selection(name)
    path = resolve(source, cache, workers=model.recipe.runtime.threads, say=say)
    prepared = PreparedSet.open(path)
    check_bytes(path, cache, say=say)
    if prepared.size != model.recipe.input.size:
        raise UserError(place, f"images are {prepared.size}×{prepared.size}, the model wants {model.recipe.input.size}")
    model.setup.task.check_set(prepared, model.recipe, place)
    check_for_model(model.saved.crops, prepared.crop, place, allowed=False)
    return select(share_of(View.of(prepared), part), meant, place)


def to_compare(model: FinishedModel, entry: str | None, least: int, cache: Path, say: Say) -> tuple[View, str]:
    """Return crops of the set that is named, or of the recipe's user, spread evenly over it; and the set's name."""
    said = entry or model.recipe.data.user
    if said is None:
        raise UserError("--data", "the run has no user; name a prepared set, on whose crops the graph is compared")
    place = "--data" if entry else "recipe.data.user"
    try:
        view = view_of(model, said, place, cache, say)
    except UserError as error:
        if entry:
            raise
        raise UserError(
            "--data", f"name a prepared set to compare on: the run's own cannot be opened ({error})"
        ) from None
    if len(view) < least:
        raise UserError(place, f"has {len(view)} crops; a comparison needs {least}")
    return evenly(view, COMPARED), view.slices[0].set.name


def evenly(view: View, most: int) -> View:
    """Return so many images of a view, spread evenly over it."""
    count = min(len(view), most)
    return view.subset((np.arange(count) * len(view)) // count)


def pixels(view: View) -> NDArray[np.uint8]:
    """Return a view's images, N×S×S×3."""
    images = view.batch(np.arange(len(view))).images.permute(0, 2, 3, 1)
    return np.ascontiguousarray(images.numpy())
