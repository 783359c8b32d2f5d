"""Sphere20 and Sphere64: FedFR's backbone, residual without BatchNorm.

W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017, with the stages of FedFR's
released code: each a convolution of stride 2 and residual blocks of two, PReLU behind every convolution, then one fully
connected layer. At 112 pixels: 24,501,952 parameters (Sphere20) and 49,726,656 (Sphere64, which has 62 convolutions).

Convolutions that begin a stage have a bias and Xavier's initialisation; those in blocks have none and start from a
normal distribution of 0.01, so that a block is nearly the identity at first (FedFR's released code).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from fedvisage.nn.embedding import Backbone, Centred, last_side

BLOCKS = {20: (1, 2, 4, 1), 64: (3, 7, 16, 3)}
FACTORS = (1, 2, 4, 8)
"""The width of each stage, in widths of the first."""


class Sphere(Backbone):
    """How many layers, and how wide."""

    depth: Literal[20, 64] = 64


class Block(nn.Module):
    """Two convolutions with PReLU, added to what went in."""

    def __init__(self, width: int) -> None:
        """All layers keep the width."""
        super().__init__()
        self.conv1, self.prelu1 = _convolution(width), nn.PReLU(width)
        self.conv2, self.prelu2 = _convolution(width), nn.PReLU(width)

    def forward(self, values: Tensor) -> Tensor:
        """Add the residual."""
        residual: Tensor = self.prelu2(self.conv2(self.prelu1(self.conv1(values))))
        return values + residual


def sphere(options: Sphere, size: int = 112) -> nn.Sequential:
    """Build the network with random weights: images in [0, 1] to features."""
    widths = [3, *(options.width * factor for factor in FACTORS)]
    parts: OrderedDict[str, nn.Module] = OrderedDict(centred=Centred())
    for number, (blocks, (inputs, width)) in enumerate(zip(BLOCKS[options.depth], pairwise(widths), strict=True), 1):
        parts[f"stage{number}"] = nn.Sequential(
            _beginning(nn.Conv2d(inputs, width, 3, stride=2, padding=1)),
            nn.PReLU(width),
            *(Block(width) for _ in range(blocks)),
        )
    parts["flat"] = nn.Flatten()
    parts["features"] = _beginning(nn.Linear(widths[-1] * last_side(size) ** 2, options.embedding))
    return nn.Sequential(parts)


def _beginning(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def _convolution(width: int) -> nn.Conv2d:
    layer = nn.Conv2d(width, width, 3, padding=1, bias=False)
    nn.init.normal_(layer.weight, std=0.01)
    return layer
