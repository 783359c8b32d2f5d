"""A network that does not change during a site's turn, whose features of an image are worked out once.

What a frozen network makes of an image depends on the image alone, and on whether it is mirrored. Over several epochs
it would be asked for the same again and again. Where images are changed in other ways too, each batch is new to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedvisage.federation.site import Batch
from fedvisage.nn.compute import Compute

MOST = 1 << 30
"""Bytes of features that a network may leave in memory; of a larger view none are kept. A fixed number: bytes of a
result must not depend on how much memory is free."""


@dataclass
class Frozen:
    """A frozen network beside a view of images."""

    net: nn.Module
    compute: Compute
    images: int
    """How many images the view has."""
    known: Tensor | None = None
    """Features of the view's first images as they are stored, where somebody has them already."""

    def __post_init__(self) -> None:
        """Begin without any features but those that are known."""
        self._rows: Tensor | None = None
        self._have = np.zeros(2 * self.images, bool)

    def features(self, batch: Batch) -> Tensor:
        """Return the features of a batch, which have no gradient."""
        if batch.positions is None or batch.mirrored is None:
            return self._pass(batch.images)
        rows = batch.positions + self.images * batch.mirrored.numpy()
        if self._rows is None and self.known is not None:
            self._remember(np.arange(len(self.known)), self.compute.bring(self.known))
        missing = np.flatnonzero(~self._have[rows])
        if len(missing) == len(rows):
            fresh = self._pass(batch.images)
            self._remember(rows, fresh)
            return fresh
        if len(missing):
            some = batch.images[self.compute.bring(torch.from_numpy(missing))]
            self._remember(rows[missing], self._pass(some.contiguous(memory_format=self.compute.layout)))
        assert self._rows is not None, "rows that are marked are there"
        return self._rows[self.compute.bring(torch.from_numpy(rows))]

    def _pass(self, images: Tensor) -> Tensor:
        with torch.no_grad(), self.compute.autocast():
            features: Tensor = self.net(images)
        return features.float()

    def _remember(self, rows: np.ndarray, features: Tensor) -> None:
        width = features.shape[1]
        if len(self._have) * width * features.element_size() > MOST:
            return
        if self._rows is None:
            self._rows = torch.empty(len(self._have), width, device=features.device)
        self._rows[self.compute.bring(torch.from_numpy(rows))] = features
        self._have[rows] = True
