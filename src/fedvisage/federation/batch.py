"""A batch as a loss sees it: read, changed at random, in the form and at the place in which networks take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedvisage.data.batches import Positions, View
from fedvisage.data.rows import Texts
from fedvisage.nn.augment import augment, only_mirrored
from fedvisage.nn.degrade import degrade
from fedvisage.nn.inputs import as_float, seen
from fedvisage.nn.precision import Compute
from fedvisage.recipe import Recipe
from fedvisage.streams import torch_rng

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
