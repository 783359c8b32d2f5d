"""The sheet: a grid in front of the head on which shape, colour and light are tabulated before the head is turned.

Positions are (u, v) in head units: u to the right in the image, v downwards, (0, 0) between the eyes. A map on the
sheet is a tensor B×V×U (or B×C×V×U). Everything that can be is kept as one-dimensional rows (1×U) and columns (1×V)
whose outer products make the maps, because an exponential at every cell is what a renderer has no time for.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as nnf
from torch import Tensor

HALF_WIDTH = 1.5
TOP, BOTTOM = -2.05, 1.95
CELLS_PER_PIXEL = 1.3
"""Sheet cells for one image pixel when a face fills 55 % of the frame: the oversampling that keeps edges smooth."""
UNITS_PER_FRAME = 2.0 / 0.55


@dataclass(frozen=True)
class Sheet:
    """The grid for one image size.

    Attributes:
        u: 1×U, positions of the columns.
        v: 1×V, positions of the rows.
        cell: the distance between neighbouring cells, in head units.

    """

    u: Tensor
    v: Tensor
    cell: float


@lru_cache(maxsize=8)
def make_sheet(size: int) -> Sheet:
    """Return the grid for images of size×size pixels; both sides are multiples of 8, so that they can be halved."""
    cell = UNITS_PER_FRAME / (size * CELLS_PER_PIXEL)
    columns = 8 * round(2 * HALF_WIDTH / cell / 8)
    rows = 8 * round((BOTTOM - TOP) / cell / 8)
    u = (torch.arange(columns) + 0.5) / columns * (2 * HALF_WIDTH) - HALF_WIDTH
    v = (torch.arange(rows) + 0.5) / rows * (BOTTOM - TOP) + TOP
    return Sheet(u[None], v[None], cell)


def look_up(maps: Tensor, u: Tensor, v: Tensor, outside: str = "border") -> Tensor:
    """Return maps (B×C×V×U) at the positions u, v (B×H×W), bilinear between cells."""
    where = torch.stack([u / HALF_WIDTH, (2 * v - (TOP + BOTTOM)) / (BOTTOM - TOP)], dim=-1)
    return nnf.grid_sample(maps, where, mode="bilinear", padding_mode=outside, align_corners=False)


def bell(position: Tensor, centre: Tensor | float, width: Tensor | float) -> Tensor:
    """Return a Gaussian bell along one axis, 1 at its centre."""
    return torch.exp(-0.5 * ((position - centre) / width) ** 2)


def step(distance: Tensor, width: Tensor | float) -> Tensor:
    """Return 0 where distance is below -width, 1 above +width, and a smooth ramp between."""
    t = (distance / width).mul(0.5).add_(0.5).clamp_(0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def outer(column: Tensor, row: Tensor) -> Tensor:
    """Return the map B×V×U that is the product of a column (B×V) and a row (B×U)."""
    return column[:, :, None] * row[:, None, :]


Bell = tuple[Tensor | float, Tensor | float, Tensor | float, Tensor | float, Tensor | float]
"""Amplitude, place and width of a bell: (amplitude, |u|, v, width along u, width along v); mirrored at u = 0."""


def sum_of_bells(bells: list[Bell], batch: int, sheet: Sheet) -> Tensor:
    """Return the sum of Gaussian bells as a map: one product of columns (B×V×K) with rows (B×K×U)."""
    amplitude, u, v, u_width, v_width = (
        torch.stack([torch.as_tensor(one[part]).expand(batch, 1)[:, 0] for one in bells], 1) for part in range(5)
    )
    columns = bell(sheet.v[:, :, None], v[:, None], v_width[:, None])
    mirrored = bell(sheet.u.abs()[:, None, :], u[:, :, None], u_width[:, :, None])
    return columns @ (mirrored * amplitude[:, :, None])


def halve(maps: Tensor) -> Tensor:
    """Return the maps (B×V×U) at half the resolution."""
    return nnf.avg_pool2d(maps[:, None], 2)[:, 0]


def enlarge(maps: Tensor, like: Tensor) -> Tensor:
    """Return the maps (B×V×U) interpolated to the resolution of another."""
    return nnf.interpolate(maps[:, None], like.shape[-2:], mode="bilinear", align_corners=False)[:, 0]


def blur(maps: Tensor, cells: float) -> Tensor:
    """Return the maps (B×V×U) smoothed by a Gaussian whose standard deviation is given in cells."""
    radius = max(1, round(2.5 * cells))
    taps = bell(torch.arange(-radius, radius + 1, dtype=torch.float32), 0.0, cells)
    taps = taps / taps.sum()
    padded = nnf.pad(maps[:, None], (radius, radius, radius, radius), mode="replicate")
    return nnf.conv2d(nnf.conv2d(padded, taps[None, None, None, :]), taps[None, None, :, None])[:, 0]
