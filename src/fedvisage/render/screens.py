"""Replay attacks: a photograph or video on a display, which emits its own light in a second room.

The display has a grid of red, green and blue sub-pixels (`media.wave` computes their moiré with the sensor's grid), a
black that leaks back-light, its own gamut and white, uneven brightness, glass that mirrors the room, a dark bezel, and
lines that are refreshed while the sensor reads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedvisage.render.camera import decode, luminance
from fedvisage.render.media import Holding, MediumView, Sampling, glow, inside, resample, wave
from fedvisage.render.noise import Range, between, column

# Panels: primaries, and the bands of a dimmed back-light.

Chromaticities = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
D65 = (0.3127, 0.3290)
SRGB: Chromaticities = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))
P3: Chromaticities = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))
OFFICE: Chromaticities = ((0.590, 0.345), (0.325, 0.560), (0.153, 0.110))
"""The panel of a plain laptop, with slightly more than half of sRGB's triangle."""


def to_xyz(primaries: Chromaticities) -> NDArray[np.float64]:
    """Return the matrix from linear RGB of these primaries to CIE XYZ, with Y = 1 for white, which is D65."""
    columns = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    target = np.array([D65[0] / D65[1], 1, (1 - D65[0] - D65[1]) / D65[1]])
    return np.asarray(columns * np.linalg.solve(columns, target))


def between_primaries(shown: Chromaticities) -> Tensor:
    """Return the matrix from RGB values on a panel to RGB of an sRGB camera; white is unchanged."""
    return torch.from_numpy(np.linalg.solve(to_xyz(SRGB), to_xyz(shown))).float()


_PANELS = tuple(between_primaries(panel) for panel in (OFFICE, SRGB, P3))


def on_panel(light: Tensor, gamut: Tensor) -> Tensor:
    """Return linear light, B×3×H×W, on a panel without colour management: 0 office, 1 sRGB, 2 wide."""
    small, plain, wide = _PANELS
    below, above = gamut.clamp(0, 1)[:, None, None], (gamut - 1).clamp(0, 1)[:, None, None]
    matrix = torch.lerp(torch.lerp(small, plain, below), wide, above)
    return torch.einsum("bij,bjhw->bihw", matrix, light).clamp_min(0)


def band_strength(depth: Tensor, frequency: Tensor, exposure: Tensor) -> Tensor:
    """Return the amplitude of bands from a back-light dimmed at a frequency, for this exposure per line.

    An exposure averages the light, which leaves |sinc|: zero for exposures of whole periods.
    """
    return depth * torch.sinc(frequency * exposure).abs()


THIRD = 2 * math.pi / 3


@dataclass(frozen=True)
class Display:
    """A display and its holding; ranges are of videos."""

    name: str
    pixels: Range  # display pixels across the shown photograph
    opening: tuple[float, float] = (0.28, 0.8)  # lit part of a pixel: width of one sub-pixel, height
    leak: Range = (0.006, 0.025)  # black against white
    gamut: Range = (0.1, 0.35)  # share by which colours shrink to grey
    blue: Range = (0.03, 0.15)  # white point: + is bluer than the room's light
    brightness: Range = (0.8, 2.0)  # white of the display relative to a white sheet in the room
    gamma: Range = (2.0, 2.4)
    uneven: Range = (0.0, 0.15)  # fall of the back-light towards one side (also: view from the side)
    mirror: Range = (0.01, 0.05)  # share of the room's light that the glass reflects
    glare: Range = (0.0, 0.5)  # brightest spot of a lamp in the glass
    flicker: Range = (0.0, 0.04)  # bands of the refresh
    bezel: float = 0.03  # brightness of the frame around the picture
    margin: Range = (0.02, 0.3)  # black or frame around the photograph, in half photographs
    frame: float = 0.35  # width of the bezel around the margin, in half photographs
    holding: Holding = field(default_factory=Holding)
    primaries: Range | None = None  # of the panel: 0 office, 1 sRGB, 2 wide; None: the gamut alone
    dimming: Range | None = None  # frequency of the back-light's dimming times exposure; None: strength of `flicker`


def replay_attack(
    photographs: Tensor,
    displays: Sequence[Display],
    room: Tensor,
    grid: Sampling,
    view: MediumView,
    videos: Sequence[int],
    frames: Sequence[int],
) -> Tensor:
    """Return the radiance, B×3×S×S, of B×3×S×S sRGB photographs on displays in a room (radiance B×3×S×S)."""

    def draw(name: str) -> Tensor:
        return between(videos, f"replay/{name}", [getattr(display, name) for display in displays])

    picture = shown_light(resample(photographs, view).clamp(0, 1), draw("gamma"), draw("gamut"), draw("leak"))
    if displays[0].primaries is not None:
        picture = on_panel(picture, draw("primaries"))
    # Outside the photograph the display shows its black.
    picture = torch.lerp(column(draw("leak")), picture, inside(view))
    blue = draw("blue")
    white = torch.stack([1 - blue, torch.ones_like(blue), 1 + blue], dim=1)[:, :, None, None]
    lit = picture * white * pixel_grid(view, displays, draw("pixels"), grid)
    strength = draw("uneven")
    angle = between(videos, "replay/uneven angle", (0.0, 2 * math.pi))[:, None, None]
    x, y = view.coordinates.unbind(-1)
    lit = (
        lit
        * column(0.6 * draw("brightness"))
        * torch.exp(column(strength) * (angle.cos() * x + angle.sin() * y)[:, None])
    )
    flicker = draw("flicker")
    if displays[0].dimming is not None:
        flicker = band_strength(flicker, draw("dimming"), torch.ones_like(flicker))
    # B×1×H×1 refresh bands on a sensor that reads line after line; they move from frame to frame.
    cycles = between(videos, "replay/band cycles", (0.5, 4.0))
    start = between(frames, "replay/band start", (0.0, 1.0))
    line = torch.linspace(0, 1, lit.shape[2])
    wave_ = torch.cos(2 * math.pi * (cycles[:, None] * line + start[:, None]))
    lit = lit * (1 + column(flicker) * wave_[:, None, :, None])
    # Light from the glass: the dim room, and the image of a lamp.
    glare = draw("glare")
    veil = column(draw("mirror")) * room.flip(3)
    place = [between(videos, f"replay/glare {axis}", (-1.1, 1.1)) for axis in "xy"]
    extent = [between(videos, f"replay/glare {axis}", (0.08, 0.45)) for axis in ("width", "height")]
    lit = lit + (veil + column(glare * glare) * glow(view, *place, *extent))
    # From the outside in: the room, the bezel, the screen.
    frame = torch.tensor([display.frame for display in displays])
    bezel = torch.tensor([display.bezel for display in displays])
    margin = draw("margin")
    screen, device = inside(view, margin), inside(view, margin + frame)
    rim = column(bezel) * luminance(room).mean((2, 3), keepdim=True) / 0.18
    return torch.lerp(torch.lerp(room, rim.expand_as(room), device), lit, screen)


def shown_light(picture: Tensor, gamma: Tensor, gamut: Tensor, leak: Tensor) -> Tensor:
    """Return the light of the display, white = 1, for sRGB values: its own curve, its gamut, its leaking black."""
    light = torch.lerp(picture.clamp_min(1e-4) ** column(gamma), decode(picture), 0.5)
    light = torch.lerp(light, luminance(light).expand_as(light), column(gamut))
    return column(leak) + (1 - column(leak)) * light


def pixel_grid(view: MediumView, displays: Sequence[Display], pixels: Tensor, grid: Sampling) -> Tensor:
    """Return the sensor's image of the sub-pixel pattern, B×3×H×W, mean 1.

    Fourier series of lit rectangles: stripes of width w have harmonics 2 sinc(m w), rows of height h 2 sinc(h); the
    stripes of the three colours are a third of a pixel apart.
    """
    opening = torch.tensor([display.opening for display in displays])
    stripe = [2 * torch.sinc(m * opening[:, 0]) for m in (1, 2)]
    row = 2 * torch.sinc(opening[:, 1])
    none = torch.zeros_like(pixels)
    pattern = 1 + column(stripe[0]) * wave(view, pixels, none, (0.0, -THIRD, THIRD), grid)
    pattern = pattern + column(stripe[1]) * wave(view, 2 * pixels, none, (0.0, THIRD, -THIRD), grid)
    pattern = pattern + column(row) * wave(view, none, pixels, (0.0, 0.0, 0.0), grid)
    for down in (pixels, -pixels):
        pattern = pattern + column(stripe[0] * row / 2) * wave(view, pixels, down, (0.0, -THIRD, THIRD), grid)
    return pattern.clamp_min(0)
