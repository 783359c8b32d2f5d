"""A network that stays frozen during a site's round, and computes the features of each image only once.

The features of an image depend only on the image and on whether it is mirrored, so they are cached over epochs. Images
with any other augmentation are new in each batch, and are not cached.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedvisage.federation.site import Batch
from fedvisage.nn.compute import Compute

CACHE_LIMIT = 1 << 30
"""Largest size of the cache in bytes; features of a larger view are not cached. The limit is fixed because the bytes of
a result must not depend on the amount of free memory."""


@dataclass
class FrozenNetwork:
    """A frozen network with a cache of its features of a view."""

    net: nn.Module
    compute: Compute
    images: int
    """Number of images in the view."""
    known: Tensor | None = None
    """Features of the view's first images, not mirrored, if the caller has them already."""

    def __post_init__(self) -> None:
        """Start with an empty cache."""
        self._rows: Tensor | None = None
        self._have = np.zeros(2 * self.images, bool)

    def features(self, batch: Batch) -> Tensor:
        """Return the features of a batch, without gradients."""
        if batch.positions is None or batch.mirrored is None:
            return self._pass(batch.images)
        # The cache has one row per image and, after these, one row per mirrored image.
        rows = batch.positions + self.images * batch.mirrored.numpy()
        if self._rows is None and self.known is not None:
            self._remember(np.arange(len(self.known)), self.compute.bring(self.known))
        missing = np.flatnonzero(~self._have[rows])
        if len(missing) == len(rows):
            fresh = self._pass(batch.images)
            self._remember(rows, fresh)
            return fresh
        if len(missing):
            images = batch.images[self.compute.bring(torch.from_numpy(missing))]
            self._remember(rows[missing], self._pass(images.contiguous(memory_format=self.compute.layout)))
        assert self._rows is not None, "rows that are marked are there"
        return self._rows[self.compute.bring(torch.from_numpy(rows))]

    def _pass(self, images: Tensor) -> Tensor:
        with torch.no_grad(), self.compute.autocast():
            features: Tensor = self.net(images)
        return features.float()

    def _remember(self, rows: np.ndarray, features: Tensor) -> None:
        width = features.shape[1]
        if len(self._have) * width * features.element_size() > CACHE_LIMIT:
            return
        if self._rows is None:
            self._rows = torch.empty(len(self._have), width, device=features.device)
        self._rows[self.compute.bring(torch.from_numpy(rows))] = features
        self._have[rows] = True
