"""Random changes of training images, drawn from a given generator.

Images are moved by whole pixels only: enlarging or turning them would blur the fine texture that tells a print or a
screen from skin.
"""

from __future__ import annotations

import torch
from kornia.enhance import adjust_hue
from torch import Generator, Tensor

from fedvisage.settings import Augment

GREY = (0.299, 0.587, 0.114)


def augment(images: Tensor, options: Augment, generator: Generator) -> Tensor:
    """Change a batch of RGB images in [0, 1]; what is switched off is skipped and draws nothing."""
    if options.flip:
        images = _flip(images, options.flip, generator)
    if options.shift:
        images = _shift(images, options.shift, generator)
    if options.brightness:
        images = images * _factor(images, options.brightness, generator)
    if options.contrast:
        mean = _grey(images).mean(dim=(-2, -1), keepdim=True)
        images = mean + (images - mean) * _factor(images, options.contrast, generator)
    if options.saturation:
        grey = _grey(images)
        images = grey + (images - grey) * _factor(images, options.saturation, generator)
    images = images.clamp(0, 1)
    if options.hue:
        angle = (2 * torch.rand(len(images), generator=generator) - 1) * options.hue * 2 * torch.pi
        images = adjust_hue(images, angle.to(images))
    return images


def _factor(images: Tensor, strength: float, generator: Generator) -> Tensor:
    drawn = 1 + strength * (2 * torch.rand(len(images), 1, 1, 1, generator=generator) - 1)
    return drawn.to(images)


def _grey(images: Tensor) -> Tensor:
    return torch.einsum("bchw,c->bhw", images, images.new_tensor(GREY))[:, None]


def _flip(images: Tensor, share: float, generator: Generator) -> Tensor:
    chosen = torch.rand(len(images), generator=generator) < share
    return torch.where(chosen[:, None, None, None].to(images.device), images.flip(-1), images)


def _shift(images: Tensor, share: float, generator: Generator) -> Tensor:
    """Move each image by its own whole number of pixels; the border is mirrored."""
    size = images.shape[-1]
    most = max(1, round(share * size))
    offsets = torch.randint(0, 2 * most + 1, (len(images), 2), generator=generator).tolist()
    padded = torch.nn.functional.pad(images, (most, most, most, most), mode="reflect")
    moved = [p[:, y : y + size, x : x + size] for p, (y, x) in zip(padded, offsets, strict=True)]
    return torch.stack(moved)
