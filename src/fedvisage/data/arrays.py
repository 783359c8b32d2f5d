"""Datasets of images in memory: arrays, or the items of a torch ``Dataset``, become a prepared set in the cache."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.arguments import check_arguments, wrong_argument
from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.base.streams import numpy_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE
from fedvisage.data.splits import draw_splits, split_subjects
from fedvisage.data.writer import Writer

ATTACK = "attack"
"""The species of attacks without a stated one."""
AT_ONCE = 256
"""Images that are in memory at once, if the caller's dataset reads them one by one."""

Column = Any
"""A list, array, tensor or column of a table, with one value per image."""


@check_arguments(name="text", cache="a path")
def dataset(
    images: Any,
    labels: Column = None,
    *,
    subjects: Column = None,
    attacks: Column = None,
    videos: Column = None,
    splits: Column = None,
    identities: bool = False,
    heldout: float = 0.25,
    name: str = "dataset",
    cache: str | Path = CACHE,
) -> PreparedSet:
    """Make a dataset of images in memory, for ``fv.run(recipe, data={"A": dataset})`` and ``fv.evaluate``.

    ``images`` are square RGB face crops of one size: an array of N×S×S×3, a tensor of N×3×S×S, or a torch ``Dataset``
    of (image, label), in uint8 or as fractions from 0 to 1. ``labels`` are 1 for bona fide and 0 for attacks; unset,
    the dataset's items contain them. ``subjects`` names the person in each image: no person is trained on and held out.
    ``attacks`` names the type of each attack, ``videos`` the video of each frame. ``heldout`` is the share of the
    people whose images set the threshold; ``splits`` (``train`` and ``heldout``) replaces that draw.

    With ``identities`` the set is for recognition: ``labels`` are the people, and ``heldout`` is the share of each
    person's images in the split ``test``. The set lies in the cache, under the digest of its content.
    """
    if isinstance(images, str | Path) or not hasattr(images, "__len__"):
        accepted = "an array, a tensor, a list or a torch Dataset with a length; give a path directly, in data="
        raise wrong_argument("images", accepted, images)
    items, count = images, len(images)
    if labels is None:
        labels = [_label_of(items[number]) for number in range(count)]
    people = _texts("labels" if identities else "subjects", labels if identities else subjects, count)
    classes = [1] * count if identities else _classes(labels, count)
    species = [ATTACK] * count if attacks is None else _texts("attacks", attacks, count)
    columns: dict[str, list[Any]] = {
        "label": classes,
        "species": [BONA_FIDE if label else kind for label, kind in zip(classes, species, strict=True)],
        "subject": people,
        "video": [f"image {n}" for n in range(count)] if videos is None else _texts("videos", videos, count),
        "frame": [0] * count,
        "item": [f"{n:08}" for n in range(count)],
        **({"group": ["all"] * count} if identities else {}),
    }
    columns["split"] = (
        _draw_splits(people, classes, heldout, identities) if splits is None else _texts("splits", splits, count)
    )
    Path(cache).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache, prefix="dataset-") as directory:
        path = Path(directory) / "set"
        try:
            _write(path, name, items, columns, identities)
        except UserError as error:
            if error.place != str(path):
                raise
            raise UserError(f"dataset {name}", error.message) from None
        final = Path(cache) / f"dataset-{PreparedSet.open(path).digest[:16]}"
        try:
            os.rename(path, final)
        except OSError as error:  # an equal set may be there already
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        return PreparedSet.open(final)


def _write(path: Path, name: str, items: Any, columns: dict[str, list[Any]], identities: bool) -> None:
    size = len(_picture(items[0], 0)) if len(items) else 1
    with Writer(path, name=name, size=size, source="arrays", identities=identities) as out:
        for first in range(0, len(items), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(items)))
            pictures = [_picture(items[number], number, size) for number in numbers]
            part: dict[str, Any] = {key: values[first : first + AT_ONCE] for key, values in columns.items()}
            out.add(np.stack(pictures), **part)


def _values(argument: str, values: Column, count: int) -> list[Any]:
    """Return one plain value per image."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise wrong_argument(argument, "a list or an array with one value per image", values)
    if len(values) != count:
        raise UserError(argument, f"has {len(values)} values for {count} images; give one value per image")
    return [value.item() if hasattr(value, "item") else value for value in values]


def _texts(argument: str, values: Column, count: int) -> list[str]:
    return [str(value) for value in _values(argument, values, count)]


def _classes(labels: Column, count: int) -> list[int]:
    classes = _values("labels", labels, count)
    for number, label in enumerate(classes):
        if label not in (0, 1):
            raise wrong_argument(f"labels[{number}]", "1 (bona fide) or 0 (attack)", label)
    return [int(label) for label in classes]


def _label_of(item: Any) -> Any:
    """Return the label of an item of a torch Dataset."""
    if not isinstance(item, list | tuple) or len(item) < 2:
        accepted = "a list or an array with one value per image, unless images is a Dataset of (image, label)"
        raise wrong_argument("labels", accepted, None)
    return item[1]


def _picture(item: Any, number: int, size: int | None = None) -> NDArray[np.uint8]:
    """Return an image as an array of S×S×3 bytes."""
    image = item[0] if isinstance(item, list | tuple) else item
    values = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    if hasattr(image, "detach") and values.ndim == 3:
        values = np.moveaxis(values, 0, -1)
    if np.issubdtype(values.dtype, np.floating) and values.size and 0 <= values.min() <= values.max() <= 1:
        values = np.round(255 * values).astype(np.uint8)
    if values.dtype != np.uint8 or values.ndim != 3 or values.shape != (len(values), len(values), 3):
        accepted = "a square RGB crop in uint8 or from 0 to 1: an array of S×S×3, a tensor of 3×S×S or a picture"
        raise wrong_argument(f"images[{number}]", accepted, image)
    if size not in (None, len(values)):
        raise UserError(f"images[{number}]", f"is {len(values)} pixels wide, the first image {size}; use one size")
    return values


def _draw_splits(people: list[str], classes: list[int], share: float, identities: bool) -> list[str]:
    """Return the split of each image: a share of the people is held out, or of each person's images for tests."""
    if not 0 <= share < 1:
        raise wrong_argument("heldout", "a share from 0 to below 1", share)
    rng = numpy_rng(0, "dataset", "splits")
    if not identities:
        split_of = split_subjects(people, classes, share, rng)
        return [split_of[person] for person in people]
    counts = Counter(people)
    drawn = {person: iter(draw_splits(counts[person], share, False, rng)) for person in sorted(counts)}
    return [next(drawn[person]) for person in people]
