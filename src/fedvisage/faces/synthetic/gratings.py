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
    coordinates, size = view.coordinates, view.coordinates.shape[1]
    phase = math.pi * (_wide(across) * coordinates[..., 0] + _wide(down) * coordinates[..., 1])
    step = size / grid.pixels  # crop pixels a sensor pixel
    middle = size // 2
    here = phase[:, middle, middle]
    frequency = torch.stack([phase[:, middle, middle + 1] - here, phase[:, middle + 1, middle] - here], dim=1)
    frequency = frequency * step[:, None] / (2 * math.pi)  # cycles a sensor pixel, B×2
    lens = torch.exp(-2 * math.pi**2 * grid.blur**2 * (frequency**2).sum(1))
    aperture = torch.sinc(frequency).prod(1)
    position = torch.arange(size, dtype=phase.dtype) + 0.5
    seen = phase.new_empty(len(phase), 3, size, size)
    for channel, (site, offset) in enumerate(zip(SITES, offsets, strict=True)):
        fold = torch.round(frequency * site) / site
        kept = lens * aperture * torch.sinc((frequency - fold) * (1 / step).clamp_min(1)[:, None]).prod(1)
        turns = 2 * math.pi * fold / step[:, None]
        unfolded = phase - (turns[:, :1] * position - offset)[:, None, :]
        unfolded -= (turns[:, 1:] * position)[:, :, None]
        torch.mul(unfolded.cos_(), _wide(kept), out=seen[:, channel])
    return seen


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None]
