"""Partial FC: a softmax over a sample of the classes, and training of the sampled rows of its centres only.

An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs by Partial FC",
CVPR 2022: all classes of a batch participate, and others are drawn uniformly up to a fixed number. Any loss of
features, centres and labels works on the sample. The gradient of an indexing operation is as large as the indexed
tensor, and so are the moments that an optimizer updates. Here the optimizer only gets the rows of the step and their
moments. The other rows and moments do not change, not even by weight decay or momentum. Time and memory of a step are
proportional to the number of its rows, whatever the number of identities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedvisage.nn.compute import to_device


class ClassSample(NamedTuple):
    """The participating classes, ascending, and the batch's labels as positions among them."""

    classes: Tensor
    labels: Tensor


def sample_classes(labels: Tensor, classes: int, wanted: int, rng: np.random.Generator) -> ClassSample:
    """Draw `wanted` classes including all of the batch's; the result is larger if the batch alone has more."""
    present, position = torch.unique(labels, return_inverse=True)
    # The random numbers are ranks: the absent class of rank k is k plus the number of present classes below it.
    below, absent_count = present.cpu().numpy() - np.arange(len(present)), classes - len(present)
    ranks = rng.choice(absent_count, size=max(0, min(wanted - len(present), absent_count)), replace=False)
    additional = ranks + np.searchsorted(below, ranks, side="right")
    chosen, order = torch.cat([present, torch.from_numpy(additional).to(labels)]).sort()
    return ClassSample(chosen, torch.argsort(order)[position])


class BatchClasses(NamedTuple):
    """Centres of the participating classes, the batch's labels within them, and for a sample the class numbers.

    Centres and labels are on the device of the centres; class numbers of a sample are on the CPU, where they were
    drawn.
    """

    centres: Tensor
    labels: Tensor
    chosen: Tensor | None = None

    def of_first(self, number: int) -> BatchClasses:
        """Return the sampled classes with numbers below `number`; all labels must be among them."""
        assert self.chosen is not None
        count = int((self.chosen < number).sum())
        return BatchClasses(self.centres[:count], self.labels, self.chosen[:count])


class Sampler:
    """Draws the classes of each batch once and gives the optimizer only their centres."""

    def __init__(
        self, optimizer: Optimizer, centres: list[nn.Parameter], wanted: int, rng: np.random.Generator
    ) -> None:
        """Replace the centres in their optimizer; classes are numbered from the first to the last of the centres."""
        self._parts = [PartialRows(optimizer, parameter) for parameter in centres]
        self._count, self._rng, self._device = wanted, rng, centres[0].device
        self._labels: Tensor | None = None
        self._sample = BatchClasses(torch.empty(0), torch.empty(0))

    def of(self, labels: Tensor) -> BatchClasses:
        """Return the classes of a batch with these labels, which are on the CPU to avoid waiting for a device."""
        if labels is not self._labels:
            sample = sample_classes(labels, sum(map(len, self._parts)), self._count, self._rng)
            self._labels = labels
            # Classes are numbered through all parts.
            rows: list[Tensor] = []
            first = 0
            for part in self._parts:
                in_part = (sample.classes >= first) & (sample.classes < first + len(part))
                rows.append(part.take(to_device(sample.classes[in_part] - first, self._device)))
                first += len(part)
            centres = torch.cat(rows) if len(rows) > 1 else rows[0]
            self._sample = BatchClasses(centres, to_device(sample.labels, self._device), sample.classes)
        return self._sample

    def finish(self) -> None:
        """Put the centres back into the optimizer."""
        for part in self._parts:
            part.finish()


class PartialRows:
    """A parameter of which each optimizer step trains selected rows.

    ``take`` returns the rows of the next step as a separate parameter, which replaces the large one in the optimizer.
    ``finish`` puts back the updated large parameter with its moments.
    """

    def __init__(self, optimizer: Optimizer, whole: nn.Parameter) -> None:
        """Take the parameter's moments from its optimizer."""
        self._optimizer, self._whole = optimizer, whole
        self._moments = dict(optimizer.state.pop(whole, {}))
        self._in_place: nn.Parameter = whole
        self._rows: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of all rows."""
        return len(self._whole)

    def take(self, rows: Tensor) -> nn.Parameter:
        """Return distinct rows for one step, after writing back those of the previous step."""
        self._put_back()
        row_parameter = nn.Parameter(self._whole.detach()[rows])
        self._replace_by(row_parameter)
        if self._moments:
            self._optimizer.state[row_parameter] = {
                name: self._of(value, rows) for name, value in self._moments.items()
            }
        self._rows = rows
        return row_parameter

    def finish(self) -> None:
        """Write back the last rows and restore the parameter in its optimizer."""
        self._put_back()
        self._replace_by(self._whole)
        if self._moments:
            self._optimizer.state[self._whole] = self._moments

    def _put_back(self) -> None:
        rows, row_parameter = self._rows, self._in_place
        if rows is None:
            return
        with torch.no_grad():
            self._whole[rows] = row_parameter
        for name, value in self._optimizer.state.pop(row_parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == row_parameter.shape:
                if name not in self._moments:
                    self._moments[name] = torch.zeros_like(self._whole, requires_grad=False)
                self._moments[name][rows] = value
            else:  # for example Adam's step count, shared by all rows
                self._moments[name] = value
        self._rows = None

    def _of(self, value: object, rows: Tensor) -> object:
        return value[rows] if isinstance(value, Tensor) and value.shape == self._whole.shape else value

    def _replace_by(self, parameter: nn.Parameter) -> None:
        for group in self._optimizer.param_groups:
            group["params"] = [parameter if current is self._in_place else current for current in group["params"]]
        self._in_place = parameter
