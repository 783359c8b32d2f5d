"""From stored pixels to what a network sees, in one place for training, evaluation and prediction."""

from __future__ import annotations

import math

import torch
from kornia.color import rgb_to_hsv
from torch import Tensor

from fedvisage.nn.hsv import with_hsv
from fedvisage.nn.precision import LAYOUT

CHANNELS = {"rgb": 3, "rgb+hsv": 6}


def as_float(images: Tensor) -> Tensor:
    """Turn uint8 RGB images into floats in [0, 1]."""
    return images.to(torch.float32).div_(255.0)


def colour_channels(images: Tensor, colour: str) -> Tensor:
    """Append hue, saturation and value to RGB images in [0, 1], all scaled to [0, 1] (FedPAD's six channels).

    With gradients, and in operations that every exporter knows; :func:`seen` gives the same numbers sooner.
    """
    if colour == "rgb":
        return images
    hsv = rgb_to_hsv(images)
    hsv[:, 0].div_(2 * math.pi)
    return torch.cat([images, hsv], dim=1)


@torch.no_grad()
def seen(images: Tensor, colour: str, layout: torch.memory_format) -> Tensor:
    """Turn RGB images in [0, 1] into a network's input, which has no gradient."""
    return images.contiguous(memory_format=layout) if colour == "rgb" else with_hsv(images, layout)


def prepare(images: Tensor, colour: str, device: torch.device, layout: torch.memory_format = LAYOUT) -> Tensor:
    """Turn stored uint8 images into a network's input."""
    return seen(as_float(images.to(device)), colour, layout)
