"""Flat media in front of a camera: the map from pixels of the new photograph to places on the medium, and moiré.

Medium coordinates: the shown photograph is the square [-1, 1]², x to the right, y down; around it is the margin (paper,
bezel), and around the margin the room. The camera's crop also covers [-1, 1]² if the medium is held straight, at the
distance at which the shown face fills the crop like a living one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from fedvisage.render.noise import Range, between, normal_numbers


@dataclass(frozen=True)
class Holding:
    """The position and motion of a held medium; ranges are of videos."""

    zoom: Range = (0.92, 1.08)  # size of the shown face relative to a living one in the crop
    shown: Range = (1.0, 1.0)  # extent of the photograph on each side, relative to its half width
    shift: float = 0.03  # standard deviation, in half crops
    turn: float = 0.04  # in-plane rotation in radians, standard deviation
    tilt: float = 0.06  # perspective, standard deviation
    bend: Range = (0.0, 0.0)  # curl of paper about an axis
    shake: float = 0.006  # motion from frame to frame


@dataclass(frozen=True)
class MediumView:
    """The camera's view of the medium.

    Attributes:
        coordinates: B×H×W×2, the place on the medium that each pixel sees.
        slope: B×1×H×W, slope of a curled sheet.
        sides: B×4, ends of the photograph at the right, bottom, left and top.

    """

    coordinates: Tensor
    slope: Tensor
    sides: Tensor


def draw_view(
    holdings: Sequence[Holding], videos: Sequence[int], frames: Sequence[int], size: int, framing: float = 1.0
) -> MediumView:
    """Place the medium: the pose by the video's seed, the shake of the hand by the frame's seed.

    `framing` is the framing of the photographs: the size of their faces relative to a living face in the crop.
    """

    def normal(name: str, spread: str) -> Tensor:
        scale = torch.tensor([getattr(holding, spread) for holding in holdings])
        shake = torch.tensor([holding.shake for holding in holdings])
        return scale * normal_numbers(videos, f"hold/{name}") + shake * normal_numbers(frames, f"hold/{name}")

    zoom = between(videos, "hold/zoom", [holding.zoom for holding in holdings]) / framing
    sides = [between(videos, f"hold/side {side}", [holding.shown for holding in holdings]) for side in range(4)]
    bend = between(videos, "hold/bend", [holding.bend for holding in holdings])
    axis = between(videos, "hold/axis", (-0.5 * math.pi, 0.5 * math.pi))
    step = (torch.arange(size) + 0.5) / size * 2 - 1
    y, x = (part.expand(len(videos), -1, -1) for part in torch.meshgrid(step, step, indexing="ij"))
    depth = 1 + _as_maps(normal("tilt x", "tilt")) * x + _as_maps(normal("tilt y", "tilt")) * y
    turn, inverse = normal("turn", "turn"), 1 / zoom
    cosine, sine = _as_maps(turn.cos() * inverse), _as_maps(turn.sin() * inverse)
    across = (x + _as_maps(normal("shift x", "shift"))) / depth
    down = (y + _as_maps(normal("shift y", "shift"))) / depth
    u, v = cosine * across - sine * down, sine * across + cosine * down
    # On a curled sheet, the distance from the fold along the sheet grows faster than the distance in the view.
    along = u * _as_maps(axis.cos()) + v * _as_maps(axis.sin())
    slope = _as_maps(bend) * along
    stretch = slope**2 * along / 6
    u, v = u + stretch * _as_maps(axis.cos()), v + stretch * _as_maps(axis.sin())
    return MediumView(torch.stack([u, v], dim=-1), slope[:, None], torch.stack(sides, dim=1))


def resample(images: Tensor, view: MediumView) -> Tensor:
    """Resample images on the medium (B×C×S×S) at the pixels of the view; places outside repeat the edge."""
    return grid_sample(images, view.coordinates, mode="bicubic", padding_mode="border", align_corners=False)


def inside(view: MediumView, margin: Tensor | float = 0.0) -> Tensor:
    """Return the anti-aliased coverage, B×1×H×W, of the photograph and a margin around it (B numbers or B×4)."""
    x, y = view.coordinates.unbind(-1)
    reach = view.sides + (margin.reshape(len(view.sides), -1) if isinstance(margin, Tensor) else margin)
    right, bottom, left, top = (_as_maps(side) for side in reach.unbind(1))
    distance = torch.minimum(torch.minimum(right - x, bottom - y), torch.minimum(x + left, y + top))
    return (distance * (view.coordinates.shape[1] / 2) + 0.5).clamp(0, 1)[:, None]


def glow(view: MediumView, x: Tensor, y: Tensor, width: Tensor, height: Tensor) -> Tensor:
    """Return a soft blob of light on the medium, B×1×H×W, 1 at its centre."""
    u, v = view.coordinates.unbind(-1)
    return torch.exp(-(((u - _as_maps(x)) / _as_maps(width)) ** 2 + ((v - _as_maps(y)) / _as_maps(height)) ** 2))[
        :, None
    ]


def _as_maps(values: Tensor) -> Tensor:
    return values[:, None, None]


def locate(view: MediumView, points: Tensor) -> Tensor:
    """Return the pixel positions of points on the medium (B×N×2, medium coordinates), by Newton's iteration."""
    size = view.coordinates.shape[1]
    maps = view.coordinates.permute(0, 3, 1, 2)
    middle = size // 2
    centre = view.coordinates[:, middle, middle]
    columns = [view.coordinates[:, middle, middle + 1] - centre, view.coordinates[:, middle + 1, middle] - centre]
    inverse = torch.linalg.inv(torch.stack(columns, dim=-1))
    pixels = torch.full_like(points, middle + 0.5)
    for _ in range(5):
        places = grid_sample(maps, medium_coordinates(pixels, size)[:, :, None], align_corners=False)[..., 0]
        pixels = pixels + torch.einsum("bij,bnj->bni", inverse, points - places.transpose(1, 2))
        pixels = pixels.clamp(0.5, size - 0.5)
    return pixels


def medium_coordinates(pixels: Tensor, size: int) -> Tensor:
    """Return medium coordinates of pixel positions in the shown photograph."""
    return pixels * (2 / size) - 1


def align(images: Tensor, eyes: Tensor, wanted: Tensor) -> Tensor:
    """Turn, scale and shift images to move two eyes (pixels, B×2×2) to the wanted pixels."""
    size = images.shape[-1]
    source_eyes, target_eyes = (
        torch.view_as_complex(medium_coordinates(pair, size).contiguous()) for pair in (eyes, wanted)
    )
    ratio = (source_eyes[:, 1] - source_eyes[:, 0]) / (target_eyes[:, 1] - target_eyes[:, 0])
    step = (torch.arange(size) + 0.5) / size * 2 - 1
    pixels = torch.complex(step[None, :].expand(size, size), step[:, None].expand(size, size))
    source = ratio[:, None, None] * (pixels - target_eyes[:, :1, None]) + source_eyes[:, :1, None]
    return grid_sample(images, torch.view_as_real(source), padding_mode="border", align_corners=False)


# Periodic structures (display pixels, printer dots) sampled by a sensor. The structure is a sum of cosines in medium
# coordinates, and each cosine passes the camera as a signal: the lens and the pixel aperture attenuate it by their
# transfer functions at the cosine's frequency *on the sensor*, sampling folds the frequency by whole multiples of the
# sampling frequency, and binning to the crop attenuates the folded cosine. So moiré appears at the difference of the
# pitches, bent by the medium's perspective and curl. Red and blue sites of a Bayer sensor are two pixels apart and fold
# at half the frequency of green sites, which gives moiré its colours.

SITES = (2.0, 1.0, 2.0)  # distance between neighbouring red, green, blue sites in sensor pixels
APERTURE = 0.85  # width of a pixel's light-sensitive part (behind its micro-lens), in pixels
INVISIBLE = 0.003  # smaller amplitudes, at a mean of 1, are below the noise and left out


@dataclass(frozen=True)
class Sampling:
    """The sensor's grid over the crop: pixels across, and lens blur in pixels, B numbers each."""

    pixels: Tensor
    blur: Tensor


def wave(view: MediumView, across: Tensor, down: Tensor, offsets: tuple[float, float, float], grid: Sampling) -> Tensor:
    """Return the sensor's image of a cosine, B×3×H×W.

    `across` and `down` are its cycles over the shown photograph, B numbers each; `offsets` its phase in each colour.
    """
    size = view.coordinates.shape[1]
    frequency = _frequency(view, across, down, grid)
    step = size / grid.pixels  # crop pixels per sensor pixel
    image = view.coordinates.new_zeros(len(across), 3, size, size)
    for channel, (site, offset) in enumerate(zip(SITES, offsets, strict=True)):
        if channel == 2 and offset == offsets[0]:
            image[:, 2] = image[:, 0]
            continue
        fold = torch.round(frequency * site) / site
        amplitude = _kept_amplitude(frequency, fold, step, grid.blur)
        rows = amplitude.nonzero()[:, 0]
        if len(rows):
            turns = 2 * math.pi * fold[rows] / step[rows, None]
            phase = _unfolded_phase(view.coordinates[rows], across[rows], down[rows], turns, offset)
            image[rows, channel] = _as_maps(amplitude[rows]) * phase.cos_()
    return image


def _frequency(view: MediumView, across: Tensor, down: Tensor, grid: Sampling) -> Tensor:
    """Return cycles per sensor pixel along x and y, in the middle of the view, B×2."""
    size = view.coordinates.shape[1]
    middle = size // 2
    centre = view.coordinates[:, middle, middle]
    to_right = view.coordinates[:, middle, middle + 1] - centre
    to_bottom = view.coordinates[:, middle + 1, middle] - centre
    cycles = torch.stack([across, down], dim=1) / 2
    step = size / grid.pixels
    return torch.stack([(cycles * to_right).sum(1), (cycles * to_bottom).sum(1)], dim=1) * step[:, None]


def _kept_amplitude(frequency: Tensor, fold: Tensor, step: Tensor, blur: Tensor) -> Tensor:
    """Return the amplitude after lens, pixel aperture and binning, B numbers; exactly 0 if invisible."""
    lens = torch.exp(-2 * math.pi**2 * blur**2 * (frequency**2).sum(1))
    aperture = torch.sinc(APERTURE * frequency).prod(1)
    # The mean of b neighbouring samples of a cosine: the Dirichlet kernel.
    residual, binned = frequency - fold, (1 / step).clamp_min(1)[:, None]
    binning = (torch.sinc(residual * binned) / torch.sinc(residual)).prod(1)
    amplitude = lens * aperture * binning
    return torch.where(amplitude.abs() < INVISIBLE, 0.0, amplitude)


def _unfolded_phase(coordinates: Tensor, across: Tensor, down: Tensor, turns: Tensor, offset: float) -> Tensor:
    """Return the phase on the crop's pixels, without the whole turns that sampling cannot see."""
    position = torch.arange(coordinates.shape[1], dtype=coordinates.dtype) + 0.5
    phase = _as_maps(math.pi * across) * coordinates[..., 0]
    phase += _as_maps(math.pi * down) * coordinates[..., 1]
    phase -= (turns[:, :1] * position - offset)[:, None, :]
    phase -= (turns[:, 1:] * position)[:, :, None]
    return phase
