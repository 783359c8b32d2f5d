"""Measure how one prepared set differs from another, such as a simulated set from a real one.

The difference of a camera cue is Cohen's d: the difference of the two means, divided by the pooled standard deviation.
A texture classifier, tested on subjects outside its training folds, shows whether the sets differ in anything else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import UserError
from fedvisage.data.crops import are_incompatible
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE
from fedvisage.datasets.show import ANY, LEAST, Array, align_columns, draw_indices, linear_auc, measure_cues
from fedvisage.faces.cues import NAMES

PLACE = "--against"
BATCH = 64


@dataclass(frozen=True)
class Differences:
    """The differences of a set from another one: per class of images, the effect size of each cue."""

    name: str
    against: str
    images: dict[str, tuple[int, int]]
    """The numbers of measured images of both sets, by class."""
    cues: dict[str, dict[str, float]]
    """Cohen's d of each cue, by class; positive if the first set has more of it."""
    texture_auc: float
    """The AUC of a classifier of texture between the bona fide images of both sets; 0.5 means no difference."""

    def as_values(self) -> dict[str, Any]:
        """Return the differences as plain values, for programs."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return a table for people."""
        counts = ", ".join(f"{first:,} and {second:,} {kind}" for kind, (first, second) in self.images.items())
        rows = [(name, *(f"{self.cues[kind][name]:+.2f}" for kind in self.cues)) for name in NAMES]
        return [
            f"differences from {self.against} in standard deviations, over {counts}; + means more in {self.name}",
            *align_columns([("cue", *self.cues), *rows]),
            f"AUC of texture between the bona fide images of both sets {self.texture_auc:.2f}; 0.50: no difference",
        ]


def compare_sets(directory: Path, against: Path) -> Differences:
    """Measure the bona fide images of two sets, and the attacks if both have enough."""
    first, second = PreparedSet.open(directory), PreparedSet.open(against)
    # Refuse sets whose images differ by their task, size or crops; rendered faces have no crops of a detector.
    place = str(second.path)
    if (first.rows.group is None) != (second.rows.group is None):
        raise UserError(place, f"and {first.path} are for different tasks; compare two sets of attacks, or of people")
    if first.size != second.size:
        raise UserError(
            place, f"has images of {second.size} pixels and {first.path} of {first.size}; import both at one --size"
        )
    rendered = any(prepared.crop is not None and prepared.crop.how == "rendered" for prepared in (first, second))
    if not rendered and are_incompatible(first.crop, second.crop):
        raise UserError(
            place, f"its crops ({second.crop}) differ from those of {first.path} ({first.crop}); import it the same way"
        )
    drawn = {kind: [draw_indices(prepared, kind) for prepared in (first, second)] for kind in (BONA_FIDE, ANY)}
    counts = {kind: (len(drawn[kind][0]), len(drawn[kind][1])) for kind in drawn}
    if min(counts[BONA_FIDE]) < LEAST:
        few = first if counts[BONA_FIDE][0] <= counts[BONA_FIDE][1] else second
        raise UserError(str(few.path), f"has {min(counts[BONA_FIDE])} bona fide images; {PLACE} needs at least {LEAST}")
    kinds = [kind for kind in drawn if min(counts[kind]) >= LEAST]
    cues = {
        kind: effect_sizes(*(measure_cues(*pair) for pair in zip((first, second), drawn[kind], strict=True)))
        for kind in kinds
    }
    chosen, others = drawn[BONA_FIDE]
    features = np.concatenate([_texture(first, chosen), _texture(second, others)])
    subjects = np.concatenate([first.rows.subject[chosen], second.rows.subject[others]])
    return Differences(
        first.name,
        second.name,
        {kind: counts[kind] for kind in kinds},
        {kind: dict(zip(NAMES, values.tolist(), strict=True)) for kind, values in cues.items()},
        linear_auc(features, np.arange(len(features)) < len(chosen), subjects),
    )


def effect_sizes(first: Array, second: Array) -> Array:
    """Return Cohen's d of each column; a column that is constant in both tables has 0 or an infinite one."""
    difference = first.mean(0) - second.mean(0)
    squares = sum(((table - table.mean(0)) ** 2).sum(0) for table in (first, second))
    deviation = np.sqrt(squares / (len(first) + len(second) - 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(difference == 0, 0.0, difference / deviation))


def _texture(prepared: PreparedSet, indices: npt.NDArray[np.int64]) -> Array:
    """Return the histograms of local binary patterns of images."""
    import torch  # showing a set alone does not need torch

    from fedvisage.nn.texture import ColourTexture

    network, rows = ColourTexture(), []
    for start in range(0, len(indices), BATCH):
        images = np.stack([prepared.images[index] for index in indices[start : start + BATCH]])
        rows.append(network(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255).numpy())
    return np.concatenate(rows).astype(np.float64)
