"""Pose: which point of the sheet each pixel of the turned head shows (relief mapping under weak perspective)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.faces.synthetic.conditions import Conditions
from fedvisage.faces.synthetic.sheet import enlarge, look_up

PIVOT = torch.tensor([0.0, 0.55, -0.75])
"""The point (u, v, height) about which the head turns; it is what ``Conditions.centre`` places in the frame."""
FRONT = 0.75
"""No part of a face is higher above the sheet than this."""
USUAL_SPEED, GREATEST_SPEED = 1.3, 6.0
"""How fast the gap to the surface closes along a line of sight: 1 where the surface faces the camera."""
TINY = torch.tensor(1e-4)


@dataclass(frozen=True)
class View:
    """What every pixel sees.

    Attributes:
        u: B×H×W, position on the sheet.
        v: B×H×W, position on the sheet.
        near: B×H×W, distance towards the camera from the pivot, in head units.

    """

    u: Tensor
    v: Tensor
    near: Tensor


def rotation(conditions: Conditions) -> Tensor:
    """Return B×3×3: head axes to camera axes; first yaw, then pitch, then roll."""
    one, zero = torch.ones_like(conditions.yaw), torch.zeros_like(conditions.yaw)
    (cy, sy), (cp, sp), (cr, sr) = (
        (angle.cos(), angle.sin()) for angle in (conditions.yaw, conditions.pitch, conditions.roll)
    )
    yaw = torch.stack([cy, zero, sy, zero, one, zero, -sy, zero, cy], -1).view(-1, 3, 3)
    pitch = torch.stack([one, zero, zero, zero, cp, -sp, zero, sp, cp], -1).view(-1, 3, 3)
    roll = torch.stack([cr, -sr, zero, sr, cr, zero, zero, zero, one], -1).view(-1, 3, 3)
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


def see(height: Tensor, small: Tensor, conditions: Conditions, size: int) -> View:
    """Find the first point of the height field on each pixel's line of sight.

    Each step goes as far as the gap to the surface divided by the speed at which the gap closes. The speed is that of
    the last step (the secant method), so that steps shorten where the side of the head falls away steeply. Most steps
    are taken at lower resolution, on the shape at half its resolution (``small``).
    """
    near = torch.full((len(conditions), size // 4, size // 4), FRONT - float(PIVOT[2]))
    speed = torch.full_like(near, USUAL_SPEED)
    for surface, pixels, steps in ((small, size // 4, 8), (small, size // 2, 3), (height, size, 1)):
        if near.shape[-1] != pixels:
            near, speed = enlarge(near, pixels, pixels), enlarge(speed, pixels, pixels)
        sight = _sight(conditions, pixels)
        gap = _gap(surface, sight, near)
        for _ in range(steps - 1):
            near = near - gap / speed
            left = _gap(surface, sight, near)
            speed = (speed * (1.0 - left / (gap + torch.copysign(TINY, gap)))).clamp_(USUAL_SPEED, GREATEST_SPEED)
            gap = left
        near = near - gap / speed
    return View(_along(sight, 0, near), _along(sight, 1, near), near)


@dataclass(frozen=True)
class _Sight:
    """The lines of sight of all pixels in head axes: where they meet the plane of the pivot, and where they point.

    Attributes:
        start: for each of u, v and height, B×H×W.
        direction: for each of u, v and height, B×1×1.

    """

    start: tuple[Tensor, ...]
    direction: tuple[Tensor, ...]


def _sight(conditions: Conditions, pixels: int) -> _Sight:
    """Return the lines of sight for a picture of so many pixels a side."""
    x, y = pixel_grid(conditions, pixels)
    turn = rotation(conditions)[..., None, None]
    start = tuple(turn[:, 0, axis] * x + (turn[:, 1, axis] * y + float(PIVOT[axis])) for axis in range(3))
    return _Sight(start, tuple(turn[:, 2, axis] for axis in range(3)))


def _along(sight: _Sight, axis: int, near: Tensor) -> Tensor:
    """Return one coordinate of the points at this nearness on the lines of sight."""
    return torch.addcmul(sight.start[axis], near, sight.direction[axis])


def _gap(height: Tensor, sight: _Sight, near: Tensor) -> Tensor:
    """Return how far above the surface the points at this nearness are."""
    surface = look_up(height[:, None], _along(sight, 0, near), _along(sight, 1, near))[:, 0]
    return _along(sight, 2, near).sub_(surface)
