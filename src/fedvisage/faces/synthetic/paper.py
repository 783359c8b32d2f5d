"""What paper adds to ink: a black that is not black, a lobe of mirrored light, the fingers that hold it, and masks.

Densities are those of reflection prints: about 1.3 to 1.6 on plain or matte paper, 2.0 to 2.3 on glossy photo paper.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedvisage.faces.synthetic.draws import between, column
from fedvisage.faces.synthetic.presenting import View, medium_coordinates

SKIN = ((0.55, 0.35, 0.26), (0.20, 0.11, 0.07))
"""Reflectance of light and of dark skin."""


def with_black_point(reflectance: Tensor, density: Tensor) -> Tensor:
    """Return what paper shows of a reflectance, in which no ink is darker than this density (log10 of 1 over light)."""
    black = column(10.0**-density)
    return black + (1 - black) * reflectance


def specular(slope: Tensor, lamp: Tensor, roughness: Tensor) -> Tensor:
    """Return the mirrored light of a lamp on a bent sheet (slopes B×1×H×W): highest where the sheet turns to the lamp.

    A Gaussian lobe of slopes, as facets of a rough surface have them (Beckmann); rougher paper mirrors less at its
    best: the lobe keeps its area.
    """
    off = (slope - column(lamp)) / column(roughness)
    return torch.exp(-(off**2)) / column(roughness / 0.1)


def fingers(view: View, tone: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the cover, B×1×H×W, and the reflectance, B×3×H×W, of two thumbs that hold the sheet at its sides.

    `tone` is 0 for light and 1 for dark skin. A thumb is a capsule that reaches in from the sheet's edge, darker
    towards its sides, as a cylinder is.
    """
    x, y = view.coordinates.unbind(-1)
    cover, light = torch.zeros_like(x), torch.ones_like(x)
    for side, sign in ((0, 1.0), (2, -1.0)):
        height = between(seeds, f"paper/thumb height {side}", (-0.6, 0.9))[:, None, None]
        width = between(seeds, f"paper/thumb width {side}", (0.09, 0.15))[:, None, None]
        reach = between(seeds, f"paper/thumb reach {side}", (0.05, 0.22))[:, None, None]
        inwards = (view.sides[:, side, None, None] - reach + width - sign * x).clamp_min(0)
        distance = torch.hypot(inwards, y - height) / width
        here = ((1 - distance) * width * x.shape[1] / 2 + 0.5).clamp(0, 1)
        light = torch.where(here > 0, (1 - 0.6 * distance.clamp(0, 1) ** 2).clamp_min(0.3), light)
        cover = torch.maximum(cover, here)
    bright, dark = torch.tensor(SKIN)
    skin = torch.lerp(bright, dark, tone[:, None])[:, :, None, None]
    return cover[:, None], skin * light[:, None]


def mask_outline(view: View, points: Tensor, size: int, seeds: Sequence[int]) -> Tensor:
    """Return the cover, B×1×H×W, of a mask that was cut out of a print along the face with these points (B×5×2)."""
    marks = medium_coordinates(points, size)
    eyes, mouth = marks[:, :2].mean(1), marks[:, 3:].mean(1)
    down = mouth - eyes
    length: Tensor = down.norm(dim=1)
    across = torch.stack([down[:, 1], -down[:, 0]], 1) / length[:, None]
    centre = eyes + 0.45 * down
    half_height = length * between(seeds, "mask/height", (1.35, 1.6))
    half_width = length * between(seeds, "mask/width", (1.0, 1.2))
    place = view.coordinates - centre[:, None, None]
    u = (place * across[:, None, None]).sum(-1) / half_width[:, None, None]
    v = (place * (down / length[:, None])[:, None, None]).sum(-1) / half_height[:, None, None]
    radius = torch.hypot(u, v)
    return ((1 - radius) * half_width[:, None, None] * view.coordinates.shape[1] / 2 + 0.5).clamp(0, 1)[:, None]


def disc_out_of_focus(distance: float, focused_at: float, focal_length: float, aperture: float) -> float:
    """Return the diameter of the disc that a point at a distance becomes on the sensor; all in the same unit.

    The thin lens: f²/N · |d − s| / (d (s − f)), with f-number N, for a lens that is focused at s.
    """
    return focal_length**2 / aperture * abs(distance - focused_at) / (distance * (focused_at - focal_length))
