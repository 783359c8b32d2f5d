"""Random changes of training images, drawn from a given generator.

Images are moved by whole pixels only: enlarging or turning them would blur the fine texture that tells a print or a
screen from skin. What blurs on purpose is in `degrade`.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedvisage.nn.ahead import brought
from fedvisage.nn.hsv import turned
from fedvisage.recipe import Augment

GREY = (0.299, 0.587, 0.114)


def augment(
    images: Tensor, depth: Tensor | None, options: Augment, generator: Generator
) -> tuple[Tensor, Tensor | None]:
    """Change a batch of RGB images in [0, 1]; depth maps are mirrored and moved with their images.

    What is switched off is skipped and draws nothing.
    """
    if options.flip:
        chosen = _to_mirror(len(images), options, generator)
        images = _mirrored(images, chosen)
        depth = None if depth is None else _mirrored(depth[:, None], chosen)[:, 0]
    if options.shift:
        size = images.shape[-1]
        most = max(1, round(options.shift * size))
        offsets = torch.randint(0, 2 * most + 1, (len(images), 2), generator=generator) - most
        images = _moved(images, offsets)
        if depth is not None:
            depth = _moved(depth[:, None], (offsets * depth.shape[-1] / size).round().long())[:, 0]
    return _coloured(images, options, generator), depth


def only_mirrored(count: int, options: Augment, generator: Generator) -> Tensor | None:
    """Return which images of a batch :func:`augment` mirrors, given the same stream; None if it changes more."""
    if any((options.shift, options.brightness, options.contrast, options.saturation, options.hue, options.changes)):
        return None
    return _to_mirror(count, options, generator) if options.flip else torch.zeros(count, dtype=torch.bool)


def _to_mirror(count: int, options: Augment, generator: Generator) -> Tensor:
    return torch.rand(count, generator=generator) < options.flip


def _coloured(images: Tensor, options: Augment, generator: Generator) -> Tensor:
    if options.brightness:
        images = images * _factor(images, options.brightness, generator)
    if options.contrast:
        mean = _grey(images).mean(dim=(-2, -1), keepdim=True)
        images = images.sub(mean).mul_(_factor(images, options.contrast, generator)).add_(mean)
    if options.saturation:
        grey = _grey(images)
        images = images.sub(grey).mul_(_factor(images, options.saturation, generator)).add_(grey)
    images = images.clamp(0, 1)
    if options.hue:
        turns = (2 * torch.rand(len(images), generator=generator) - 1) * options.hue
        images = turned(images, brought(turns, images.device).to(images))
    return images


def _factor(images: Tensor, strength: float, generator: Generator) -> Tensor:
    drawn = 1 + strength * (2 * torch.rand(len(images), 1, 1, 1, generator=generator) - 1)
    return brought(drawn, images.device).to(images)


def _grey(images: Tensor) -> Tensor:
    return torch.einsum("bchw,c->bhw", images, brought(torch.tensor(GREY), images.device).to(images))[:, None]


def _mirrored(images: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(brought(chosen, images.device)[:, None, None, None], images.flip(-1), images)


def _moved(images: Tensor, offsets: Tensor) -> Tensor:
    """Move each image by its own whole number of pixels; the border is mirrored."""
    size, most = images.shape[-1], int(offsets.abs().max())
    padded = torch.nn.functional.pad(images, (most, most, most, most), mode="reflect")
    corners = (offsets + most).tolist()
    return torch.stack([p[:, y : y + size, x : x + size] for p, (y, x) in zip(padded, corners, strict=True)])
