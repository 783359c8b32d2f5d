"""Training a few rows of a large parameter in each step: the centres of a softmax's sampled classes.

Partial FC (An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs by
Partial FC", CVPR 2022): a batch's own classes take part, and others that are drawn. The gradient of an indexing is as
large as what was indexed, and so are the moments that an optimizer moves in a step. Here the optimizer sees the rows
of the step and their moments only; the others, and theirs, stay as they are, and neither weight decay nor momentum
moves them. Time and memory of a step follow the number of rows in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedvisage.nn.compute import brought
from fedvisage.nn.losses.sampled import sample_classes


class Classes(NamedTuple):
    """Centres of the classes that take part, a batch's labels among them, and their numbers if they are a sample.

    Centres and labels are where the centres are; numbers of a sample are on the CPU, where they were drawn.
    """

    centres: Tensor
    labels: Tensor
    chosen: Tensor | None = None

    def of_first(self, number: int) -> Classes:
        """Return a sample's classes of which the numbers are lower than that; all labels are among them."""
        assert self.chosen is not None
        here = int((self.chosen < number).sum())
        return Classes(self.centres[:here], self.labels, self.chosen[:here])


class Sampler:
    """Draws the classes of each batch, once, and lends the optimizer their centres only."""

    def __init__(
        self, optimizer: Optimizer, centres: list[nn.Parameter], wanted: int, rng: np.random.Generator
    ) -> None:
        """Take the place of centres in their optimizer; their classes are counted from the first to the last."""
        self._parts = [PartialRows(optimizer, one) for one in centres]
        self._wanted, self._rng, self._device = wanted, rng, centres[0].device
        self._labels: Tensor | None = None
        self._drawn = Classes(torch.empty(0), torch.empty(0))

    def of(self, labels: Tensor) -> Classes:
        """Return the classes of a batch with these labels, which are on the CPU: nobody waits for a device."""
        if labels is not self._labels:
            sample = sample_classes(labels, sum(map(len, self._parts)), self._wanted, self._rng)
            self._labels = labels
            self._drawn = Classes(self._take(sample.classes), brought(sample.labels, self._device), sample.classes)
        return self._drawn

    def _take(self, classes: Tensor) -> Tensor:
        taken: list[Tensor] = []
        first = 0
        for part in self._parts:
            here = (classes >= first) & (classes < first + len(part))
            taken.append(part.take(brought(classes[here] - first, self._device)))
            first += len(part)
        return torch.cat(taken) if len(taken) > 1 else taken[0]

    def finish(self) -> None:
        """Put the centres back."""
        for part in self._parts:
            part.finish()


class PartialRows:
    """A parameter of an optimizer of which each step trains some rows.

    ``take`` hands out the rows of the next step, as a parameter of their own in the large one's place; ``finish`` puts
    the large one back, as it has become, with its moments.
    """

    def __init__(self, optimizer: Optimizer, whole: nn.Parameter) -> None:
        """Take the parameter's place in its optimizer."""
        self._optimizer, self._whole = optimizer, whole
        self._moments = dict(optimizer.state.pop(whole, {}))
        self._in_place: nn.Parameter = whole
        self._rows: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of all rows."""
        return len(self._whole)

    def take(self, rows: Tensor) -> nn.Parameter:
        """Return some rows, each named once, for one step; those of the step before are put back."""
        self._put_back()
        taken = nn.Parameter(self._whole.detach()[rows])
        self._replace_by(taken)
        if self._moments:
            self._optimizer.state[taken] = {name: self._of(value, rows) for name, value in self._moments.items()}
        self._rows = rows
        return taken

    def finish(self) -> None:
        """End the training of single rows."""
        self._put_back()
        self._replace_by(self._whole)
        if self._moments:
            self._optimizer.state[self._whole] = self._moments

    def _put_back(self) -> None:
        rows, taken = self._rows, self._in_place
        if rows is None:
            return
        with torch.no_grad():
            self._whole[rows] = taken
        for name, value in self._optimizer.state.pop(taken, {}).items():
            if isinstance(value, Tensor) and value.shape == taken.shape:
                if name not in self._moments:
                    self._moments[name] = torch.zeros_like(self._whole, requires_grad=False)
                self._moments[name][rows] = value
            else:  # such as Adam's count of steps, which all rows share
                self._moments[name] = value
        self._rows = None

    def _of(self, value: object, rows: Tensor) -> object:
        return value[rows] if isinstance(value, Tensor) and value.shape == self._whole.shape else value

    def _replace_by(self, parameter: nn.Parameter) -> None:
        for group in self._optimizer.param_groups:
            group["params"] = [parameter if one is self._in_place else one for one in group["params"]]
        self._in_place = parameter
