"""From stored pixels to what a network sees, in one place for training, evaluation and prediction."""

from __future__ import annotations

import math

import torch
from kornia.color import rgb_to_hsv
from torch import Tensor

from fedvisage.nn.precision import LAYOUT

CHANNELS = {"rgb": 3, "rgb+hsv": 6}


def as_float(images: Tensor) -> Tensor:
    """Turn uint8 RGB images into floats in [0, 1]."""
    return images.to(torch.float32).div_(255.0)


def colour_channels(images: Tensor, colour: str) -> Tensor:
    """Append hue, saturation and value to RGB images in [0, 1], all scaled to [0, 1] (FedPAD's six channels)."""
    if colour == "rgb":
        return images
    hsv = rgb_to_hsv(images)
    hsv[:, 0].div_(2 * math.pi)
    return torch.cat([images, hsv], dim=1)


def prepare(images: Tensor, colour: str, device: torch.device, layout: torch.memory_format = LAYOUT) -> Tensor:
    """Turn stored uint8 images into a network's input."""
    return colour_channels(as_float(images.to(device)), colour).contiguous(memory_format=layout)
