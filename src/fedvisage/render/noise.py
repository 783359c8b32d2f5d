"""Noise: irregular patterns at several scales, and random numbers per image and purpose.

Patterns are windows of large fixed tiles. Fresh noise for every image would take longer than shading it; a tile is made
once for each grid, so a pattern costs one copy. A pattern depends on its seed only.

Every image has its own seed, and every quantity its own stream derived from that seed. So an image does not depend on
the rest of its batch, nor on the order of draws: new parameters leave all other draws unchanged.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as nnf
from torch import Tensor

from fedvisage.base.streams import derive, torch_rng

# Random numbers per image and purpose.

Range = tuple[float, float]


def uniform_numbers(seeds: Sequence[int], name: str) -> Tensor:
    """Return one number in [0, 1) for each seed."""
    drawn = {seed: derive(seed, name) / 2.0**63 for seed in set(seeds)}  # frames of a video share its seed
    return torch.tensor([drawn[seed] for seed in seeds], dtype=torch.float64).float()


def between(seeds: Sequence[int], name: str, ranges: Sequence[Range] | Range) -> Tensor:
    """Return one number for each seed, uniform in its range (one range for all, or one per seed)."""
    bounds = torch.tensor(ranges, dtype=torch.float32).expand(len(seeds), 2)
    return bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * uniform_numbers(seeds, name)


def normal_numbers(seeds: Sequence[int], name: str) -> Tensor:
    """Return one standard normal number for each seed."""
    radius = torch.sqrt(-2 * torch.log1p(-uniform_numbers(seeds, f"{name}/radius").double()))
    return (radius * torch.cos(2 * math.pi * uniform_numbers(seeds, f"{name}/angle").double())).float()


def normal_field(seeds: Sequence[int], name: str, *shape: int) -> Tensor:
    """Return one standard normal array of this shape for each seed."""
    return torch.stack([torch.randn(shape, generator=torch_rng(seed, name)) for seed in seeds])


def column(values: Tensor) -> Tensor:
    """Reshape numbers, one per image, to multiply B×C×H×W images."""
    return values[:, None, None, None]


TILE_UNITS = 6.5
"""Height and width of a tile, in head units: more than the sheet or a frame needs."""
SCALES: dict[str, tuple[float, float]] = {
    "fine": (0.025, 0.025),
    "medium": (0.09, 0.09),
    "coarse": (0.40, 0.40),
    "strands": (0.55, 0.028),
    "locks": (0.9, 0.13),
}
"""Distance between independent values along v and along u, in head units."""


@lru_cache(maxsize=64)
def _tile(kind: str, cell: float) -> Tensor:
    """Return a tile of unit variance, interpolated from a lattice of independent values."""
    cells = round(TILE_UNITS / cell)
    down, right = SCALES[kind]
    lattice = (round(TILE_UNITS / down), round(TILE_UNITS / right))
    values = torch.randn(lattice, generator=torch_rng(20261121, "noise", kind))
    tile = nnf.interpolate(values[None, None], (cells, cells), mode="bicubic", align_corners=False)[0, 0]
    return (tile - tile.mean()) / tile.std()


def noise(kind: str, seeds: Sequence[int], purpose: str, rows: int, columns: int, cell: float) -> Tensor:
    """Return B×rows×columns of noise with mean 0 and variance 1 over the tile, one pattern per seed and purpose."""
    tile = _tile(kind, round(cell, 6))
    patterns = torch.empty(len(seeds), rows, columns)
    for row, seed in enumerate(seeds):
        place = derive(seed, "noise", kind, purpose)
        top = (place & 0xFFFFFF) * (tile.shape[0] - rows) >> 24
        left = (place >> 24 & 0xFFFFFF) * (tile.shape[1] - columns) >> 24
        patterns[row] = tile[top : top + rows, left : left + columns]
    return patterns
