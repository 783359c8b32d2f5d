"""The sheet: a grid in front of the head that stores shape, colour and light before the head is turned.

Positions are (u, v) in head units: u to the right in the image, v downwards, (0, 0) between the eyes. A map on the
sheet is a tensor B×V×U (or B×C×V×U). Where possible, quantities are one-dimensional rows (1×U) and columns (1×V) whose
outer products make the maps, because an exponential at every cell would be too slow.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as nnf
from torch import Tensor

from fedvisage.render.people import Conditions

HALF_WIDTH = 1.5
TOP, BOTTOM = -2.05, 1.95
CELLS_PER_PIXEL = 1.1
"""Sheet cells per image pixel when a face fills 55 % of the frame: oversampling keeps edges smooth."""
UNITS_PER_FRAME = 2.0 / 0.55
FARTHEST = -25.0
"""Smallest exponent of a bell."""


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


@dataclass(frozen=True)
class Window:
    """A rectangle of the sheet, for parts of the face.

    Attributes:
        u: 1×U', positions of its columns.
        v: 1×V', positions of its rows.
        rows: its rows on the sheet.
        columns: its columns on the sheet.

    """

    u: Tensor
    v: Tensor
    rows: slice
    columns: slice

    def of(self, maps: Tensor) -> Tensor:
        """Return this part of a map or stack of maps, sharing its memory."""
        return maps[..., self.rows, self.columns]


def window(sheet: Sheet, top: float = TOP, bottom: float = BOTTOM, half_width: float = HALF_WIDTH) -> Window:
    """Return the part of the sheet between two heights, symmetric about the middle."""
    rows = slice(int((sheet.v < top).sum()), int((sheet.v <= bottom).sum()))
    columns = slice(int((sheet.u < -half_width).sum()), int((sheet.u <= half_width).sum()))
    return Window(sheet.u[:, columns], sheet.v[:, rows], rows, columns)


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
    positions = torch.empty(*u.shape, 2)
    torch.mul(u, 1.0 / HALF_WIDTH, out=positions[..., 0])
    torch.mul(v - (TOP + BOTTOM) / 2, 2.0 / (BOTTOM - TOP), out=positions[..., 1])
    return nnf.grid_sample(maps, positions, mode="bilinear", padding_mode=outside, align_corners=False)


def bell(position: Tensor, centre: Tensor | float, width: Tensor | float) -> Tensor:
    """Return a Gaussian bell along one axis, 1 at its centre.

    Its exponent is limited, because denormal numbers would make all following operations ten times slower.
    """
    return ((position - centre) / width).square_().mul_(-0.5).clamp_(min=FARTHEST).exp_()


def plateau(position: Tensor, half_width: Tensor | float, power: int) -> Tensor:
    """Return 1 around 0, falling to 0 beyond the half width; a higher (even) power falls more abruptly."""
    return (position / half_width).pow_(power).neg_().clamp_(min=FARTHEST).exp_()


def step(distance: Tensor, width: Tensor | float) -> Tensor:
    """Return 0 where distance is below -width, 1 above +width, and a smooth ramp between."""
    t = (distance * (0.5 / width)).add_(0.5).clamp_(0.0, 1.0)
    return (t * -2.0).add_(3.0).mul_(t).mul_(t)


def outer(column: Tensor, row: Tensor) -> Tensor:
    """Return the product of a column (B×V) and a row (B×U) as a map B×V×U."""
    return column[:, :, None] * row[:, None, :]


Bell = tuple[Tensor | float, Tensor | float, Tensor | float, Tensor | float, Tensor | float]
"""Amplitude, place and width of a bell: (amplitude, |u|, v, width along u, width along v); mirrored at u = 0."""


def sum_of_bells(bells: list[Bell], batch: int, sheet: Sheet) -> Tensor:
    """Return the sum of Gaussian bells as a map: one product of columns (B×V×K) with rows (B×K×U)."""
    amplitude, u, v, u_width, v_width = (
        torch.stack([torch.as_tensor(parameters[part]).expand(batch, 1)[:, 0] for parameters in bells], 1)
        for part in range(5)
    )
    columns = bell(sheet.v[:, :, None], v[:, None], v_width[:, None])
    mirrored = bell(sheet.u.abs()[:, None, :], u[:, :, None], u_width[:, :, None])
    return columns @ (mirrored * amplitude[:, :, None])


def tint(maps: Tensor, colour: Tensor) -> Tensor:
    """Return each map (B×V×U) in a colour (B×3), as B×3×V×U. A matrix product is faster than broadcasting."""
    flat = torch.bmm(colour[:, :, None], maps.flatten(1)[:, None])
    return flat.view(len(maps), 3, *maps.shape[1:])


def halve(maps: Tensor) -> Tensor:
    """Return the maps (B×V×U) at half the resolution: the mean of each four cells."""
    rows = maps[:, ::2] + maps[:, 1::2]
    return (rows[..., ::2] + rows[..., 1::2]).mul_(0.25)


def enlarge(maps: Tensor, rows: int, columns: int) -> Tensor:
    """Return the maps (… ×V×U) interpolated linearly to more rows and columns.

    Products with constant matrices are several times faster than the library's interpolation.
    """
    return (_stretching(maps.shape[-2], rows) @ maps) @ _stretching(maps.shape[-1], columns).T


@lru_cache(maxsize=64)
def _stretching(length: int, target: int) -> Tensor:
    """Return the matrix that interpolates a column of this length linearly to the target length."""
    return nnf.interpolate(torch.eye(length)[None], target, mode="linear", align_corners=False)[0].T.contiguous()


def blur(maps: Tensor, cells: float) -> Tensor:
    """Return the maps (B×V×U) smoothed by a Gaussian with the given standard deviation in cells."""
    rows, columns = maps.shape[-2:]
    return _smoothing(rows, cells) @ maps @ _smoothing(columns, cells).T


@lru_cache(maxsize=64)
def _smoothing(length: int, cells: float) -> Tensor:
    """Return the matrix that smooths a column of this length; the last values continue beyond the ends."""
    place = torch.arange(length, dtype=torch.float32)
    reach = round(3 * cells) + 1
    offsets = torch.arange(-reach, reach + 1)
    taps = bell(offsets.float(), 0.0, cells)
    matrix = torch.zeros(length, length)
    for offset, tap in zip(offsets.tolist(), (taps / taps.sum()).tolist(), strict=True):
        source = (place.long() + offset).clamp(0, length - 1)
        matrix[place.long(), source] += tap
    return matrix


# Pose: the point of the sheet behind each pixel of the turned head (relief mapping under weak perspective).

PIVOT = torch.tensor([0.0, 0.55, -0.75])
"""The point (u, v, height) about which the head turns; ``Conditions.centre`` is its position in the frame."""
FRONT = 0.75
"""Largest height of a face above the sheet."""
USUAL_SPEED, GREATEST_SPEED = 1.3, 6.0
"""Speed at which the gap to the surface closes along a line of sight: 1 on surfaces that face the camera."""
TINY = torch.tensor(1e-4)


@dataclass(frozen=True)
class SurfaceView:
    """The point of the head behind every pixel.

    Attributes:
        u: B×H×W, position on the sheet.
        v: B×H×W, position on the sheet.
        near: B×H×W, distance towards the camera from the pivot, in head units.

    """

    u: Tensor
    v: Tensor
    near: Tensor


def rotation(conditions: Conditions) -> Tensor:
    """Return the rotations from head axes to camera axes, B×3×3: first yaw, then pitch, then roll."""
    ones, zeros = torch.ones_like(conditions.yaw), torch.zeros_like(conditions.yaw)
    (cy, sy), (cp, sp), (cr, sr) = (
        (angle.cos(), angle.sin()) for angle in (conditions.yaw, conditions.pitch, conditions.roll)
    )
    yaw = torch.stack([cy, zeros, sy, zeros, ones, zeros, -sy, zeros, cy], -1).view(-1, 3, 3)
    pitch = torch.stack([ones, zeros, zeros, zeros, cp, -sp, zeros, sp, cp], -1).view(-1, 3, 3)
    roll = torch.stack([cr, -sr, zeros, sr, cr, zeros, zeros, zeros, ones], -1).view(-1, 3, 3)
    return torch.einsum("bij,bjk,bkl->bil", roll, pitch, yaw)


def units_per_frame(conditions: Conditions) -> Tensor:
    """Return the width of the frame in head units, B."""
    return 2.0 / conditions.scale


def pixel_grid(conditions: Conditions, size: int) -> tuple[Tensor, Tensor]:
    """Return x and y of every pixel's centre in head units from the pivot, B×1×W and B×H×1."""
    steps = (torch.arange(size) + 0.5) / size
    units = units_per_frame(conditions)[:, None]
    x = (steps - conditions.centre[:, :1]) * units
    y = (steps - conditions.centre[:, 1:]) * units
    return x[:, None, :], y[:, :, None]


def project(points: Tensor, conditions: Conditions, size: int) -> Tensor:
    """Return pixel coordinates (x, y) of points (B×N×3: u, v, height)."""
    turned = torch.einsum("bij,bnj->bni", rotation(conditions), points - PIVOT)
    frame = turned[..., :2] / units_per_frame(conditions)[:, None, None] + conditions.centre[:, None]
    return frame * size


def find_visible_points(height: Tensor, small: Tensor, conditions: Conditions, size: int) -> SurfaceView:
    """Find the first point of the height field on each pixel's line of sight.

    The length of each step is the gap to the surface divided by the speed at which the gap closes. The speed is that of
    the last step (the secant method), so steps are shorter at the steep sides of the head. Most steps use lower image
    resolutions and the shape at half its resolution (``small``).
    """
    near = torch.full((len(conditions), size // 4, size // 4), FRONT - float(PIVOT[2]))
    speed = torch.full_like(near, USUAL_SPEED)
    for surface, pixels, steps in ((small, size // 4, 8), (small, size // 2, 3), (height, size, 1)):
        if near.shape[-1] != pixels:
            near, speed = enlarge(near, pixels, pixels), enlarge(speed, pixels, pixels)
        # Lines of sight for a square picture with this number of pixels per side.
        x, y = pixel_grid(conditions, pixels)
        turn = rotation(conditions)[..., None, None]
        start = tuple(turn[:, 0, axis] * x + (turn[:, 1, axis] * y + float(PIVOT[axis])) for axis in range(3))
        sight = _SightLines(start, tuple(turn[:, 2, axis] for axis in range(3)))
        gap = _gap(surface, sight, near)
        for _ in range(steps - 1):
            near = near - gap / speed
            remaining = _gap(surface, sight, near)
            speed = (speed * (1.0 - remaining / (gap + torch.copysign(TINY, gap)))).clamp_(USUAL_SPEED, GREATEST_SPEED)
            gap = remaining
        near = near - gap / speed
    return SurfaceView(_along(sight, 0, near), _along(sight, 1, near), near)


@dataclass(frozen=True)
class _SightLines:
    """The lines of sight of all pixels in head axes: their points in the plane of the pivot, and their directions.

    Attributes:
        start: for each of u, v and height, B×H×W.
        direction: for each of u, v and height, B×1×1.

    """

    start: tuple[Tensor, ...]
    direction: tuple[Tensor, ...]


def _along(sight: _SightLines, axis: int, near: Tensor) -> Tensor:
    """Return one coordinate of the points at this nearness on the lines of sight."""
    return torch.addcmul(sight.start[axis], near, sight.direction[axis])


def _gap(height: Tensor, sight: _SightLines, near: Tensor) -> Tensor:
    """Return the height above the surface of the points at this nearness."""
    surface = look_up(height[:, None], _along(sight, 0, near), _along(sight, 1, near))[:, 0]
    return _along(sight, 2, near).sub_(surface)
