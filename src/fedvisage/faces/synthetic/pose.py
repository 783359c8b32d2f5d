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
    turn = rotation(conditions)
    near = torch.full((len(conditions), size // 4, size // 4), FRONT - float(PIVOT[2]))
    speed = torch.full_like(near, USUAL_SPEED)
    for surface, pixels, steps in ((small, size // 4, 8), (small, size // 2, 3), (height, size, 1)):
        if near.shape[-1] != pixels:
            near, speed = enlarge(near, pixels, pixels), enlarge(speed, pixels, pixels)
        gap = _gap(surface, turn, conditions, near)
        for _ in range(steps - 1):
            near = near - gap / speed
            left = _gap(surface, turn, conditions, near)
            speed = (speed * (1.0 - left / (gap + torch.copysign(TINY, gap)))).clamp_(USUAL_SPEED, GREATEST_SPEED)
            gap = left
        near = near - gap / speed
    u, v, _ = _head_point(turn, conditions, near)
    return View(u, v, near)


def _head_point(turn: Tensor, conditions: Conditions, near: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the point (u, v, height) that lies at this nearness on each pixel's line of sight."""
    x, y = pixel_grid(conditions, near.shape[-1])
    axes = turn[..., None, None]
    u, v, w = (
        (axes[:, 0, k] * x + (axes[:, 1, k] * y + float(PIVOT[k]))).addcmul_(near, axes[:, 2, k]) for k in range(3)
    )
    return u, v, w


def _gap(height: Tensor, turn: Tensor, conditions: Conditions, near: Tensor) -> Tensor:
    """Return how far above the surface the points at this nearness are."""
    u, v, w = _head_point(turn, conditions, near)
    surface = look_up(height[:, None], u, v)[:, 0]
    return w - surface
