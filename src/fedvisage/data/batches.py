"""Views of prepared sets, batches of their images, and the batch order of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import UserError
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import Coded, Texts

if TYPE_CHECKING:
    from torch import Tensor

Positions = npt.NDArray[np.int64]
Sampling = Literal["shuffled", "balanced"]


@dataclass(frozen=True, eq=False)
class Slice:
    """Selected images of one prepared set."""

    set: PreparedSet
    indices: Positions


@dataclass(frozen=True, eq=False)
class Batch:
    """Images with the labels and targets that losses need."""

    images: Tensor  # uint8 B×3×H×W; channels last in memory, as on disk
    labels: Tensor  # float32 B; 1: bona fide, 0: attack
    depth: Tensor | None  # float32 B×32×32 in [0, 1]
    species: Texts


@dataclass(frozen=True, eq=False)
class View:
    """A sequence of slices, addressed by positions 0 … N-1."""

    slices: tuple[Slice, ...]

    @staticmethod
    def of(source: PreparedSet, split: str | None = None) -> View:
        """Return a view of one split of a set, or of the whole set."""
        return View((Slice(source, source.select(split)),))

    @staticmethod
    def join(views: Sequence[View]) -> View:
        """Concatenate views."""
        return View(tuple(part for view in views for part in view.slices))

    def subset(self, positions: Positions) -> View:
        """Return a view of the images at these positions, in that order."""
        slice_numbers, indices = self._locate(positions)
        # Consecutive positions in the same slice become one slice of the result.
        starts = np.flatnonzero(np.diff(slice_numbers, prepend=-1))
        return View(
            tuple(
                Slice(self.slices[slice_numbers[run[0]]].set, indices[run])
                for run in np.split(np.arange(len(slice_numbers)), starts[1:])
                if len(run)
            )
        )

    def __len__(self) -> int:
        """Return the number of images."""
        return sum(len(part.indices) for part in self.slices)

    @cached_property
    def labels(self) -> npt.NDArray[np.uint8]:
        """Labels: 1 for bona fide, 0 for an attack."""
        labels = [part.set.rows.label[part.indices] for part in self.slices]
        return np.concatenate(labels or [np.empty(0, np.uint8)])

    @cached_property
    def subjects(self) -> Texts:
        """Subject of each image, as named by its set."""
        return self._texts("subject")

    @cached_property
    def species(self) -> Texts:
        """Species of each image: `bonafide`, or the type of attack."""
        return self._texts("species")

    @cached_property
    def identities(self) -> Texts:
        """Unique subjects, sorted. In an identity set these are the classes for recognition."""
        return np.unique(self.subjects)

    @cached_property
    def groups(self) -> Texts:
        """Group of each image of an identity set."""
        return self._texts("group")

    def coded(self, column: str) -> Coded:
        """Return the sorted values of a column in the view's sets and, for each image, the number of its value."""
        columns = [part.set.rows.coded(column) for part in self.slices]
        if len(columns) == 1:
            return columns[0][0], columns[0][1][self.slices[0].indices]
        values = np.unique(np.concatenate([texts for texts, _ in columns] or [np.empty(0, np.str_)]))
        codes = [
            np.searchsorted(values, texts)[numbers[part.indices]]
            for (texts, numbers), part in zip(columns, self.slices, strict=True)
        ]
        return values, np.concatenate([*codes, np.empty(0, np.int64)]).astype(np.int64)

    @property
    def of_identities(self) -> bool:
        """True if every image comes from an identity set."""
        return all(part.set.rows.group is not None for part in self.slices)

    def of_people(self, names: Texts) -> View:
        """Return a view of the images of these identities."""
        return self.subset(np.flatnonzero(np.isin(self.subjects, names)))

    @cached_property
    def videos(self) -> Texts:
        """Video of each image, as named by its set."""
        return self._texts("video")

    @cached_property
    def items(self) -> Texts:
        """Item of each image: its path-like name within its set."""
        return self._texts("item")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the further columns that all sets of the view have."""
        names_by_slice = [tuple(part.set.rows.further) for part in self.slices]
        return tuple(
            name
            for name in (names_by_slice[0] if names_by_slice else ())
            if all(name in names for names in names_by_slice)
        )

    def column(self, name: str) -> Texts:
        """Return the values of a further column."""
        texts = [part.set.rows.further[name][part.indices] for part in self.slices]
        return np.concatenate(texts or [np.empty(0, np.str_)])

    def batch(self, positions: Positions) -> Batch:
        """Read the images at these positions into memory."""
        import torch  # here, because reports use views without having torch

        slice_numbers, indices = self._locate(positions)
        images = self._gather_rows("images", slice_numbers, indices)
        depth = None
        if all(part.set.depth is not None for part in self.slices):
            depth = torch.from_numpy(self._gather_rows("depth", slice_numbers, indices)).float() / 255
        return Batch(
            images=torch.from_numpy(images).permute(0, 3, 1, 2),
            labels=torch.from_numpy(self.labels[positions].astype(np.float32)),
            depth=depth,
            species=self.species[positions],
        )

    @cached_property
    def _ends(self) -> Positions:
        return np.cumsum([len(part.indices) for part in self.slices], dtype=np.int64)

    def _locate(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return, for each position, the number of its slice and its index within the set of that slice."""
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"positions must be in 0 … {len(self) - 1}")
        slice_numbers = np.searchsorted(self._ends, positions, side="right").astype(np.int64)
        starts = self._ends - [len(part.indices) for part in self.slices]
        indices = np.empty(len(positions), np.int64)
        for number, part in enumerate(self.slices):
            in_slice = slice_numbers == number
            indices[in_slice] = part.indices[positions[in_slice] - starts[number]]
        return slice_numbers, indices

    def _gather_rows(self, field: str, which: Positions, indices: Positions) -> npt.NDArray[np.uint8]:
        """Read rows of an array field of the sets, in order."""
        # As plain arrays, because indexing a memory map costs more than copying a small image.
        arrays = [getattr(part.set, field).view(np.ndarray) for part in self.slices]
        if len(arrays) == 1:
            return np.take(arrays[0], indices, axis=0)
        out = np.empty((len(indices), *arrays[0].shape[1:]), arrays[0].dtype)
        for number, array in enumerate(arrays):
            in_slice = which == number
            if in_slice.any():
                out[in_slice] = np.take(array, indices[in_slice], axis=0)
        return out

    def _texts(self, column: str) -> Texts:
        texts = [getattr(part.set.rows, column)[part.indices] for part in self.slices]
        return np.concatenate(texts or [np.empty(0, np.str_)])


def check_view(view: View, place: str) -> None:
    """Raise a UserError unless the view can be used for training: one image size, and both classes."""
    sizes = {part.set.size: part.set.name for part in view.slices}
    if len(sizes) > 1:
        size_list = ", ".join(f"{name} has {size}×{size}" for size, name in sorted(sizes.items()))
        raise UserError(place, f"mixed image sizes: {size_list}; prepare all sets at one size")
    if len(view) == 0:
        raise UserError(place, "has no images in this split; add subjects")
    bona_fide = int(view.labels.sum())
    if bona_fide in (0, len(view)):
        missing = "bona fide images" if bona_fide == 0 else "attacks"
        raise UserError(place, f"has no {missing} among its {len(view)} images; training needs both classes")


def epoch_batches(view: View, generator: np.random.Generator, *, size: int, sampling: Sampling) -> list[Positions]:
    """Return the positions of each batch of one epoch.

    `shuffled` visits every image once. It drops a last batch of one image, because BatchNorm cannot train on it.
    `balanced` fills each batch with as many bona fide images as attacks (one more attack if the size is odd) and
    repeats each class, reshuffled, as often as needed. Both produce the same number of batches, except for a dropped
    last one.
    """
    if size < 2:
        raise UserError("batch", f"must be at least 2, got {size}")
    if sampling == "shuffled":
        shuffled = generator.permutation(len(view)).astype(np.int64)
        batches = [shuffled[start : start + size] for start in range(0, len(view), size)]
        return [batch for batch in batches if len(batch) > 1]
    count = -(-len(view) // size)
    bona_fide = _repeat_shuffled(np.flatnonzero(view.labels == 1), count * (size // 2), generator)
    attacks = _repeat_shuffled(np.flatnonzero(view.labels == 0), count * (size - size // 2), generator)
    halves = zip(bona_fide.reshape(count, size // 2), attacks.reshape(count, size - size // 2), strict=True)
    return [generator.permutation(np.concatenate(pair)) for pair in halves]


def mixed_batches(view: View, generator: np.random.Generator, size: int) -> list[Positions]:
    """Split all positions into at least two well-mixed batches of nearly equal size, about `size` each.

    The assignment depends on the names of the images, not on their storage order.
    """
    shuffled = np.argsort(view.items, kind="stable")[generator.permutation(len(view))].astype(np.int64)
    return np.array_split(shuffled, min(max(2, -(-len(view) // size)), max(len(view), 1)))


def _repeat_shuffled(positions: Positions, count: int, generator: np.random.Generator) -> Positions:
    """Return `count` positions from consecutive shuffles of all of them; the last shuffle is truncated."""
    if len(positions) == 0 and count > 0:
        raise UserError("sampling", "balanced batches need both classes in the data")
    shuffles = [generator.permutation(positions) for _ in range(0, count, len(positions) or 1)]
    return np.concatenate([*shuffles, np.empty(0, np.int64)])[:count].astype(np.int64)
