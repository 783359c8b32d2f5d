"""What the face recognition networks share: pixels around zero, sizes that halve four times, options."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.errors import UserError
from fedvisage.recipe import Section

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""By channel, RGB from 0 to 1."""

REDUCTION = 16
"""Each network halves an image four times; the paper's 112 pixels become 7."""


class Backbone(Section):
    """The width of the first stage, which the others are multiples of, and the length of a feature.

    The papers' are the defaults; narrower ones are for CPU recipes.
    """

    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 is the papers', less is for CPUs."""
    embedding: int = Field(512, ge=8)
    """Numbers of a feature."""


class Centred(nn.Module):
    """Pixels from [0, 1] to [−1, 1], which is what the papers do to 8-bit pixels with (x − 127.5) / 127.5."""

    def forward(self, images: Tensor) -> Tensor:
        """Shift and scale."""
        return images * 2 - 1


class Normalised(nn.Module):
    """Pixels from [0, 1] by mean and deviation of ImageNet's channels, as networks for photographs take them."""

    def __init__(self) -> None:
        """Keep both beside the weights, of which they are none."""
        super().__init__()
        self.mean, self.std = (
            nn.Buffer(torch.tensor(values)[:, None, None], persistent=False) for values in (IMAGENET_MEAN, IMAGENET_STD)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Shift and scale."""
        normalised: Tensor = (images - self.mean) / self.std
        return normalised


def last_side(size: int) -> int:
    """Return the side of the last map; sizes that do not halve four times are refused."""
    if size < REDUCTION or size % REDUCTION:
        raise UserError(
            "recipe.input.size", f"these networks take multiples of {REDUCTION} pixels, got {size}; use 112"
        )
    return size // REDUCTION
