"""A periodic structure (display pixels, printer dots) sampled by a sensor: what is left of it, and as what.

The structure is a sum of cosines in medium coordinates. Each is carried through the camera as a signal is: the lens
and the pixel aperture attenuate it by their transfer functions at the cosine's frequency *on the sensor*, sampling
folds the frequency by whole multiples of the sampling frequency, and binning to the crop attenuates the folded one.
So moiré is where it must be: at the difference of the two pitches, bent by the medium's perspective and curl. Red and
blue sites of a Bayer sensor lie two pixels apart and fold at half the frequency of green ones: moiré is coloured.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedvisage.faces.synthetic.camera import Shots
from fedvisage.faces.synthetic.presenting import View

SITES = (2.0, 1.0, 2.0)  # distance of two red, green, blue sites in sensor pixels
APERTURE = 0.85  # width of a pixel's light-sensitive part (behind its micro-lens), in pixels
INVISIBLE = 0.003  # amplitudes below, of a mean of 1, are less than the noise and are left out


@dataclass(frozen=True)
class Sampling:
    """The sensor's grid over the crop: pixels across, and lens blur in pixels, B numbers each."""

    pixels: Tensor
    blur: Tensor


def sampling_of(shots: Shots) -> Sampling:
    """Return the grid with which these photographs sample the scene."""
    return Sampling(shots.pixels, shots.blur)


def wave(view: View, across: Tensor, down: Tensor, offsets: tuple[float, float, float], grid: Sampling) -> Tensor:
    """Return what the sensor sees, B×3×H×W, of a cosine.

    `across` and `down` are its cycles over the shown photograph, B numbers each; `offsets` its phase in each colour.
    """
    size = view.coordinates.shape[1]
    frequency = _frequency(view, across, down, grid)
    step = size / grid.pixels  # crop pixels a sensor pixel
    seen = view.coordinates.new_zeros(len(across), 3, size, size)
    for channel, (site, offset) in enumerate(zip(SITES, offsets, strict=True)):
        if channel == 2 and offset == offsets[0]:
            seen[:, 2] = seen[:, 0]
            continue
        fold = torch.round(frequency * site) / site
        kept = _kept(frequency, fold, step, grid.blur)
        rows = kept.nonzero()[:, 0]
        if len(rows):
            turns = 2 * math.pi * fold[rows] / step[rows, None]
            phase = _unfolded(view.coordinates[rows], across[rows], down[rows], turns, offset)
            seen[rows, channel] = _wide(kept[rows]) * phase.cos_()
    return seen


def _frequency(view: View, across: Tensor, down: Tensor, grid: Sampling) -> Tensor:
    """Return cycles a sensor pixel along x and y, in the middle of the view, B×2."""
    size = view.coordinates.shape[1]
    middle = size // 2
    here = view.coordinates[:, middle, middle]
    to_right = view.coordinates[:, middle, middle + 1] - here
    to_bottom = view.coordinates[:, middle + 1, middle] - here
    cycles = torch.stack([across, down], dim=1) / 2
    step = size / grid.pixels
    return torch.stack([(cycles * to_right).sum(1), (cycles * to_bottom).sum(1)], dim=1) * step[:, None]


def _kept(frequency: Tensor, fold: Tensor, step: Tensor, blur: Tensor) -> Tensor:
    """Return the amplitude that passes lens, pixel aperture and binning, B numbers; exactly 0 when invisible."""
    lens = torch.exp(-2 * math.pi**2 * blur**2 * (frequency**2).sum(1))
    aperture = torch.sinc(APERTURE * frequency).prod(1)
    # The mean of b neighbouring samples of a cosine: the Dirichlet kernel.
    residual, binned = frequency - fold, (1 / step).clamp_min(1)[:, None]
    binning = (torch.sinc(residual * binned) / torch.sinc(residual)).prod(1)
    kept = lens * aperture * binning
    return torch.where(kept.abs() < INVISIBLE, 0.0, kept)


def _unfolded(coordinates: Tensor, across: Tensor, down: Tensor, turns: Tensor, offset: float) -> Tensor:
    """Return the phase on the crop's pixels, less the whole turns that sampling cannot see."""
    position = torch.arange(coordinates.shape[1], dtype=coordinates.dtype) + 0.5
    phase = _wide(math.pi * across) * coordinates[..., 0]
    phase += _wide(math.pi * down) * coordinates[..., 1]
    phase -= (turns[:, :1] * position - offset)[:, None, :]
    phase -= (turns[:, 1:] * position)[:, :, None]
    return phase


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None]
