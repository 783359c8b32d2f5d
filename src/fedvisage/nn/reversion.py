"""The network of PrivacyFace's reversion attack (Q. Meng et al., ICLR 2022, Table 5): from an embedding to a face.

fc + BN to 512 maps of 4×4, then transposed convolutions 4×4 of stride 2, each halving the maps (the first three and the
fourth with BN and ReLU), the last with a sigmoid: 128×128 after five.

Deviations from the paper: faces smaller than 128 take fewer transposed convolutions.
"""

from __future__ import annotations

import math

from torch import nn

from fedvisage.errors import UserError

FIRST, GRID = 512, 4


def reversion_network(dimension: int, size: int, width: int = FIRST) -> nn.Sequential:
    """Build Table 5 for embeddings of a dimension and square faces of a size; ``width`` maps at 4×4."""
    steps = int(math.log2(size / GRID))
    if GRID * 2**steps != size or steps < 1:
        raise UserError("size", f"must be 8, 16, 32 … for the reversion network, got {size}")
    layers: list[nn.Module] = [
        nn.Linear(dimension, width * GRID * GRID),
        nn.BatchNorm1d(width * GRID * GRID),
        nn.Unflatten(1, (width, GRID, GRID)),
    ]
    channels = width
    for _ in range(steps - 1):
        layers += [
            nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(),
        ]
        channels //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1), nn.Sigmoid())
