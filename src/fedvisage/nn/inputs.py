"""Conversion of stored pixels to network inputs, shared by training, evaluation and prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from fedvisage.nn.compute import LAYOUT, to_device

PIXELS = 1 << 16
"""Pixels that a CPU processes at a time, or one image if it has more; other devices process a whole batch."""
EPS = 1e-8
TURN = 2 * math.pi

Compare = Callable[..., Tensor]


@torch.no_grad()
def with_hsv(images: Tensor, layout: torch.memory_format) -> Tensor:
    """Append hue, saturation and value to RGB images in [0, 1], all scaled to [0, 1].

    The result equals kornia's `rgb_to_hsv`, several times faster on a CPU: images are processed in small groups whose
    planes stay in the cache, and products with ones and zeros replace selection by a mask (`torch.where`), which takes
    ten times as long. There are no gradients, and numbers have at least 32 bits.
    """
    count, _, height, width = images.shape
    channels = torch.empty(count, 6, height, width, dtype=images.dtype, device=images.device, memory_format=layout)
    for first, end in _parts(images):
        red, green, blue = (images[first:end, channel].contiguous() for channel in range(3))
        value, chroma = _value_and_chroma(red, green, blue)
        saturation = torch.add(value, EPS)
        torch.div(chroma, saturation, out=saturation)
        hue = _sextants(red, green, blue, value, chroma).div_(6.0)
        hue.add_(_ones(torch.lt, hue, 0.0)).mul_(TURN)
        hue.mul_(_ones(torch.lt, hue, TURN)).div_(TURN)  # rounding can give a full turn, which equals 0
        for channel, plane in enumerate((red, green, blue, hue, saturation, value)):
            channels[first:end, channel] = plane
    return channels


@torch.no_grad()
def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Return RGB images in [0, 1] with hues shifted, each image by its own fraction of a turn.

    The result equals kornia's `adjust_hue`, computed in the same fast way as `with_hsv`.
    """
    shifted = torch.empty_like(images)
    for first, end in _parts(images):
        red, green, blue = (images[first:end, channel].contiguous() for channel in range(3))
        value, chroma = _value_and_chroma(red, green, blue)
        hue = _sextants(red, green, blue, value, chroma).add_(6 * turns[first:end, None, None])
        for channel, place in enumerate((5, 3, 1)):
            distance = hue.add(place)
            distance.sub_(distance.div(6.0).floor_(), alpha=6.0)  # around the circle of six sextants
            torch.minimum(distance, torch.sub(4.0, distance), out=distance)
            torch.sub(value, distance.clamp_(0, 1).mul_(chroma), out=shifted[first:end, channel])
    return shifted


def _parts(images: Tensor) -> Iterator[tuple[int, int]]:
    """Return the start and end of each group of images to process together."""
    count, _, height, width = images.shape
    step = max(1, PIXELS // (height * width)) if images.device.type == "cpu" else max(1, count)
    return pairwise([*range(0, count, step), count])


def _value_and_chroma(red: Tensor, green: Tensor, blue: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest channel, and its difference to the smallest."""
    value = torch.maximum(red, green)
    torch.maximum(value, blue, out=value)
    chroma = torch.minimum(red, green)
    torch.minimum(chroma, blue, out=chroma)
    return value, torch.sub(value, chroma, out=chroma)


def _sextants(red: Tensor, green: Tensor, blue: Tensor, value: Tensor, chroma: Tensor) -> Tensor:
    """Return the hue in sextants, from −1 to 5; among equal channels the first decides, and grey is 0."""
    first = _ones(torch.ge, red, green).mul_(_ones(torch.ge, red, blue))
    second = _ones(torch.ge, green, blue)
    second.addcmul_(second, first, value=-1)
    third = torch.sub(1.0, first).sub_(second)
    length = torch.add(chroma, _ones(torch.eq, chroma, 0.0))
    below_red, below_green, below_blue = (torch.sub(value, channel) for channel in (red, green, blue))
    hue = torch.sub(below_blue, below_green).mul_(first)
    hue.addcmul_(torch.sub(below_red, below_blue).add_(length, alpha=2.0), second)
    hue.addcmul_(torch.sub(below_green, below_red).add_(length, alpha=4.0), third)
    return hue.div_(length)


def _ones(compare: Compare, values: Tensor, others: Tensor | float) -> Tensor:
    """Return 1 where a comparison holds and 0 elsewhere, in the same type."""
    return compare(values, others, out=torch.empty_like(values))


CHANNELS = {"rgb": 3, "rgb+hsv": 6}


def as_float(images: Tensor) -> Tensor:
    """Convert uint8 RGB images to floats in [0, 1]."""
    return images.to(torch.float32).div_(255.0)


def colour_channels(images: Tensor, colour: str) -> Tensor:
    """Append hue, saturation and value to RGB images in [0, 1], all scaled to [0, 1] (FedPAD's six channels).

    This version has gradients and uses operations that every exporter supports; :func:`network_input` returns the
    same faster.
    """
    if colour == "rgb":
        return images
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    # Exporters remove the addition of a constant as small as EPS; this addend is not a constant.
    saturation = chroma / (value + torch.where(value == 0, 1.0, EPS))
    divisor = torch.where(chroma == 0, torch.ones_like(chroma), chroma)
    below_red, below_green, below_blue = value - red, value - green, value - blue
    # The largest channel decides in which third of the colour circle the hue lies; red wins ties, then green.
    from_green = below_red - below_blue + 2.0 * divisor
    from_blue = below_green - below_red + 4.0 * divisor
    sextants = torch.where(green >= blue, from_green, from_blue)
    sextants = torch.where((red >= green) & (red >= blue), below_blue - below_green, sextants)
    hue = TURN * (sextants / divisor / 6.0 % 1.0)
    hue = hue.masked_fill(hue >= TURN, 0.0) / TURN  # rounding can give a whole turn
    return torch.cat([images, torch.stack([hue, saturation, value], dim=1)], dim=1)


@torch.no_grad()
def network_input(images: Tensor, colour: str, layout: torch.memory_format) -> Tensor:
    """Convert RGB images in [0, 1] to network inputs without gradients."""
    return images.contiguous(memory_format=layout) if colour == "rgb" else with_hsv(images, layout)


def prepare(images: Tensor, colour: str, device: torch.device, layout: torch.memory_format = LAYOUT) -> Tensor:
    """Convert stored uint8 images to network inputs."""
    return network_input(as_float(to_device(images, device)), colour, layout)
