"""Print attacks: a photograph on paper, flat under the light of a second room, whole or with the eyes cut out.

A printer prints cyan, magenta, yellow and black dots (coverage from the intended reflectance, enlarged by dot gain,
with impure inks: the gamut), in screens at the usual angles; paper has a white, a grain and a curl. The sheet has one
depth: the second light shades the sheet, never the face in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedvisage.render import noise
from fedvisage.render.camera import decode
from fedvisage.render.media import Holding, MediumView, Sampling, glow, inside, medium_coordinates, resample, wave
from fedvisage.render.noise import Range, between, column

# Effects of paper: its black point, mirrored light, holding fingers, and cut-out masks. Densities are those of
# reflection prints: about 1.3 to 1.6 on plain or matte paper, 2.0 to 2.3 on glossy photo paper.

SKIN = ((0.55, 0.35, 0.26), (0.20, 0.11, 0.07))
"""Reflectance of light and of dark skin."""


def with_black_point(reflectance: Tensor, density: Tensor) -> Tensor:
    """Return a printed reflectance on paper whose darkest ink has this density (log10 of 1 over light)."""
    black = column(10.0**-density)
    return black + (1 - black) * reflectance


def specular(slope: Tensor, lamp: Tensor, roughness: Tensor) -> Tensor:
    """Return the mirrored light of a lamp on a bent sheet (slopes B×1×H×W), brightest at slopes towards the lamp.

    The lobe is a Gaussian of slopes, as on the facets of a rough surface (Beckmann); its area is constant, so rougher
    paper has a weaker maximum.
    """
    off = (slope - column(lamp)) / column(roughness)
    return torch.exp(-(off**2)) / column(roughness / 0.1)


def fingers(view: MediumView, tone: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the cover, B×1×H×W, and the reflectance, B×3×H×W, of two thumbs that hold the sheet at its sides.

    `tone` is 0 for light and 1 for dark skin. A thumb is a capsule that enters from the sheet's edge, darker towards
    its sides like a cylinder.
    """
    x, y = view.coordinates.unbind(-1)
    cover, light = torch.zeros_like(x), torch.ones_like(x)
    for side, sign in ((0, 1.0), (2, -1.0)):
        height = between(seeds, f"paper/thumb height {side}", (-0.6, 0.9))[:, None, None]
        width = between(seeds, f"paper/thumb width {side}", (0.09, 0.15))[:, None, None]
        reach = between(seeds, f"paper/thumb reach {side}", (0.05, 0.22))[:, None, None]
        inwards = (view.sides[:, side, None, None] - reach + width - sign * x).clamp_min(0)
        distance = torch.hypot(inwards, y - height) / width
        thumb = ((1 - distance) * width * x.shape[1] / 2 + 0.5).clamp(0, 1)
        light = torch.where(thumb > 0, (1 - 0.6 * distance.clamp(0, 1) ** 2).clamp_min(0.3), light)
        cover = torch.maximum(cover, thumb)
    bright, dark = torch.tensor(SKIN)
    skin = torch.lerp(bright, dark, tone[:, None])[:, :, None, None]
    return cover[:, None], skin * light[:, None]


def mask_outline(view: MediumView, points: Tensor, size: int, seeds: Sequence[int]) -> Tensor:
    """Return the cover, B×1×H×W, of a mask cut out of a print along the face with these points (B×5×2)."""
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
    inside: Tensor = (1 - radius) * half_width[:, None, None] * view.coordinates.shape[1] / 2 + 0.5
    return inside.clamp(0, 1)[:, None]


def disc_out_of_focus(distance: float, focused_at: float, focal_length: float, aperture: float) -> float:
    """Return the diameter on the sensor of the blur disc of a point at a distance; all lengths in the same unit.

    The thin lens: f²/N · |d − s| / (d (s − f)), with f-number N, for a lens focused at s.
    """
    return focal_length**2 / aperture * abs(distance - focused_at) / (distance * (focused_at - focal_length))


# Share of red, green, blue light that full cyan, magenta, yellow, black ink absorbs.
ABSORPTION = ((0.92, 0.20, 0.06), (0.06, 0.88, 0.22), (0.02, 0.07, 0.86), (0.95, 0.95, 0.95))
SCREEN_ANGLES = (15.0, 75.0, None, 45.0)  # of the four inks in degrees; yellow dots are too faint to see


@dataclass(frozen=True)
class Printer:
    """A printer with its paper and the holding of its sheets; ranges are of videos."""

    name: str
    dots: Range  # halftone dots across the photograph
    dot_strength: Range = (0.5, 1.0)  # 1: hard-edged dots; 0: continuous tone
    dot_gain: Range = (0.1, 0.3)
    grain: Range = (0.02, 0.06)  # unevenness of ink and paper
    white: tuple[float, float, float] = (0.88, 0.88, 0.86)
    purity: Range = (0.1, 0.6)  # share by which the driver corrects for impure inks
    gloss: Range = (0.0, 0.15)  # brightest mirror-like light, relative to the light on the paper
    margin: Range = (0.05, 0.3)  # white edge around the photograph, in half photographs
    light: Range = (0.6, 1.4)  # light on the sheet relative to light in the room
    warmth: Range = (-0.08, 0.12)  # colour of that light
    gradient: Range = (0.0, 0.35)  # fall of that light across the sheet
    holding: Holding = field(default_factory=Holding)
    density: Range | None = None  # of the darkest ink, log10; None: as dark as the inks' product
    sheen: Range | None = None  # mirrored light of the room's lamp on a bent sheet; None: only the gloss


def print_attack(
    photographs: Tensor,
    printers: Sequence[Printer],
    room: Tensor,
    grid: Sampling,
    view: MediumView,
    videos: Sequence[int],
) -> Tensor:
    """Return the radiance, B×3×S×S, of printed B×3×S×S sRGB photographs held up in a room (radiance)."""

    def draw(name: str) -> Tensor:
        return between(videos, f"print/{name}", [getattr(printer, name) for printer in printers])

    size = photographs.shape[-1]
    grain = noise.normal_field(videos, "print/grain", 1, size, size)
    resampled = resample(torch.cat([photographs, grain], dim=1), view)
    picture, grain = resampled[:, :3].clamp(0, 1), resampled[:, 3:]
    # Ink covers the photograph only; the margin around it is bare paper.
    coverage = ink_coverage(decode(picture)) * inside(view)
    white = torch.tensor([printer.white for printer in printers])[:, :, None, None]
    layers = _dots(coverage, view, draw("dots"), draw("dot_strength"), grid)
    reflectance = print_reflectance(layers, draw("dot_gain"), draw("purity"))
    if printers[0].density is not None:
        reflectance = with_black_point(reflectance, draw("density"))
    reflectance = white * reflectance
    reflectance = reflectance * (1 + column(draw("grain")) * grain)
    # The light of the second room, B×3×H×W: a smooth fall across the sheet, and the shading of a curled one.
    warmth = draw("warmth")
    angle = between(videos, "print/light angle", (0.0, 2 * math.pi))
    x, y = view.coordinates.unbind(-1)
    fall = (angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y)[:, None]
    shade = torch.exp(column(draw("gradient")) * fall - 0.5 * view.slope - 0.5 * view.slope**2)
    colour = torch.stack([1 + warmth, torch.ones_like(warmth), 1 - warmth], dim=1)[:, :, None, None]
    lit = reflectance * (column(draw("light")) * colour * shade * 0.6)
    # Mirrored light does not depend on the ink.
    place = [between(videos, f"print/gloss {axis}", (-1.0, 1.0)) for axis in "xy"]
    extent = [between(videos, f"print/gloss {axis}", (0.15, 0.8)) for axis in ("width", "height")]
    lit = lit + (column(draw("gloss") * draw("light")) * glow(view, *place, *extent))
    if printers[0].sheen is not None:
        lamp = torch.tan(between(videos, "print/lamp", (-1.2, 1.2)) / 2)
        shine = specular(view.slope, lamp, between(videos, "print/roughness", (0.08, 0.3)))
        lit = lit + column(draw("sheen") * draw("light")) * shine
    margins = [between(videos, f"print/margin {side}", [printer.margin for printer in printers]) for side in range(4)]
    return torch.lerp(room, lit, inside(view, torch.stack(margins, dim=1)))


def cut_attack(
    photographs: Tensor,
    printers: Sequence[Printer],
    room: Tensor,
    grid: Sampling,
    view: MediumView,
    videos: Sequence[int],
    *,
    eyes: Tensor,
    behind: Tensor,
) -> Tensor:
    """Print, cut holes at the eyes (B×2×2 in medium coordinates) and hold the sheet before a living face (radiance)."""
    sheet = print_attack(photographs, printers, room, grid, view, videos)
    # Almond-shaped holes, and the dark rims left by the knife.
    distance = (eyes[:, 1] - eyes[:, 0]).norm(dim=1)
    width = distance * between(videos, "cut/width", (0.24, 0.34))
    height = distance * between(videos, "cut/height", (0.10, 0.17))
    x, y = view.coordinates.unbind(-1)
    radius = torch.full_like(x, math.inf)
    for eye in range(2):
        u = (x - eyes[:, eye, 0, None, None]) / width[:, None, None]
        v = (y - eyes[:, eye, 1, None, None]) / height[:, None, None]
        radius = torch.minimum(radius, (u**2 + v.abs() ** 1.6))
    hole = torch.sigmoid((1 - radius) * 8)[:, None]
    rim = (0.35 * torch.exp(-(((radius - 1.15) / 0.2) ** 2)))[:, None]
    # The sheet shades the face behind it.
    dim = column(between(videos, "cut/shade", (0.55, 0.9)))
    return sheet * (1 - rim) * (1 - hole) + hole * dim * behind


def ink_coverage(reflectance: Tensor) -> Tensor:
    """Return the coverage of cyan, magenta, yellow, black, B×4×H×W in [0, 1], for this B×3×H×W reflectance."""
    missing = 1 - reflectance.clamp(0, 1)
    black = 0.7 * (missing.amin(1, keepdim=True) - 0.3).clamp_min(0) / 0.7
    return torch.cat([((missing - black) / (1 - black).clamp_min(0.05)).clamp(0, 1), black], dim=1)


def print_reflectance(coverage: Sequence[Tensor], dot_gain: Tensor, purity: Tensor) -> Tensor:
    """Return the reflectance of paper of white 1 under four inks (Neugebauer's product, dots that spread)."""
    gain = 4 * column(dot_gain)
    reflectance = torch.ones_like(coverage[0])
    for ink, absorbed in zip(coverage, ABSORPTION, strict=True):
        corrected = torch.tensor([part if part == max(absorbed) else part / 2 for part in absorbed])
        taken = torch.lerp(torch.tensor(absorbed)[None], corrected[None], purity[:, None])[:, :, None, None]
        spread = (ink * -gain).add_(1 + gain).mul_(ink).clamp_(0, 1)
        reflectance = torch.addcmul(reflectance, reflectance * spread, taken, value=-1)
    return reflectance


def _dots(coverage: Tensor, view: MediumView, dots: Tensor, strength: Tensor, grid: Sampling) -> list[Tensor]:
    """Return the four coverages in the sensor's three colours, each with the visible part of its screen."""
    layers = []
    for ink, angle in zip(torch.split(coverage, 1, dim=1), SCREEN_ANGLES, strict=True):
        if angle is None:
            layers.append(ink)
            continue
        cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        first = wave(view, dots * cosine, dots * sine, (0.0, 0.0, 0.0), grid)
        second = wave(view, -dots * sine, dots * cosine, (0.0, 0.0, 0.0), grid)
        # First harmonic of square dots of area a: the amplitude 2/π sin(πa) shared by both directions.
        amplitude = column(strength) * torch.sin(math.pi * ink) / math.pi
        layers.append(ink + amplitude * (first + second))
    return layers
