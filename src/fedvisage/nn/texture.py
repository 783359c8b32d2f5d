"""Colour texture: histograms of uniform local binary patterns in two colour spaces.

The pattern of a pixel records which of its eight neighbours on a circle of radius 1 are at least as bright (T. Ojala,
M. Pietikäinen, T. Mäenpää, "Multiresolution Gray-Scale and Rotation Invariant Texture Classification with Local Binary
Patterns", 2002). A pattern is uniform if it changes at most twice around the circle. There are 58 uniform patterns, and
one more bin holds all others.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedvisage.nn.inputs import colour_channels

NEIGHBOURS, BINS = 8, 59
FEATURES = 6 * BINS
"""Six channels: hue, saturation, value, and luma with two colour differences."""
DIAGONAL = 2**0.5 - 1
"""Weight of the side neighbours relative to the corner in the interpolation of a diagonal neighbour."""


class ColourTexture(nn.Module):
    """Texture features of a network's input, without trainable parameters."""

    uniform: Tensor

    def __init__(self) -> None:
        """Tabulate the bin of each pattern."""
        super().__init__()
        self.register_buffer("uniform", uniform_bins(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return B×354 features: square roots of each channel's histogram, scaled so that a uniform one is all zero."""
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            shares = [histogram(channel) @ self.uniform for channel in channels(images).unbind(1)]
            return torch.cat(shares, dim=1).mul(BINS).sqrt() - 1

    def as_graph(self, images: Tensor) -> Tensor:
        """Return the same without integer counting, which exported graphs do not support."""
        shares = []
        for channel in channels(images).unbind(1):
            # The patterns as integers that can be indices.
            bits = [brighter.long() * (1 << bit) for bit, brighter in enumerate(_brighter(channel))]
            codes = torch.stack(bits).sum(dim=0).flatten(1)
            none = torch.zeros_like(codes[:, :1]).float().expand(-1, 1 << NEIGHBOURS)
            counts = none.scatter_add(1, codes, torch.ones_like(codes, dtype=torch.float32))
            shares.append(counts / codes.shape[1] @ self.uniform)
        return torch.cat(shares, dim=1).mul(BINS).sqrt() - 1


class TextureClassifier(nn.Module):
    """A linear classifier of the texture features."""

    def __init__(self) -> None:
        """Start with torch's random weights."""
        super().__init__()
        self.texture, self.plane = ColourTexture(), nn.Linear(FEATURES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the signed margin, B×1."""
        return torch.as_tensor(self.plane(self.texture(images)))


def channels(images: Tensor) -> Tensor:
    """Return HSV and YCbCr as integers from 0 to 255, from RGB, or RGB and HSV, in [0, 1]."""
    rgb = images[:, :3]
    hsv = images[:, 3:] if images.shape[1] == 6 else colour_channels(rgb, "rgb+hsv")[:, 3:]
    # Luma, blue and red difference (ITU-R BT.601, full range).
    red, green, blue = rgb.unbind(1)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    ycbcr = torch.stack([luma, (blue - luma) * 0.564 + 0.5, (red - luma) * 0.713 + 0.5], dim=1)
    return torch.cat([hsv, ycbcr], dim=1).float().clamp_(0, 1).mul_(255).round_()


def histogram(channel: Tensor) -> Tensor:
    """Return the shares of the 256 patterns in a channel of each image (B×H×W), as B×256."""
    codes = patterns(channel.contiguous()).flatten(1).int()
    first = torch.arange(len(codes), dtype=torch.int32, device=codes.device)[:, None] << NEIGHBOURS
    counts = torch.bincount((codes + first).flatten(), minlength=len(codes) << NEIGHBOURS)
    return counts.view(len(codes), -1) / codes.shape[1]


def patterns(channel: Tensor) -> Tensor:
    """Return the pattern of every pixel of B×H×W with all its neighbours; bit k belongs to the neighbour at k·45°.

    A diagonal neighbour on the circle lies between four pixels. Its bilinear interpolation is at least the middle pixel
    a exactly if (√2 − 1)·(b + c − 2a) + d − a ≥ 0, with b and c at the sides and d in the corner. Integer levels make
    this exact in flat regions.
    """
    codes = torch.zeros_like(channel[:, 1:-1, 1:-1], dtype=torch.uint8)
    for bit, brighter in enumerate(_brighter(channel)):
        codes |= brighter.view(torch.uint8) << bit
    return codes


def _brighter(channel: Tensor) -> Iterator[Tensor]:
    """Yield, for each of the eight neighbours, the mask of pixels with a neighbour at least as bright.

    The order starts at the right and goes counter-clockwise.
    """
    height, width = channel.shape[-2:]
    middle = channel[:, 1:-1, 1:-1]

    def beyond(down: int, right: int) -> Tensor:
        return channel[:, 1 + down : height - 1 + down, 1 + right : width - 1 + right] - middle

    side = [beyond(0, 1), beyond(-1, 0), beyond(0, -1), beyond(1, 0)]
    corner = [beyond(-1, 1), beyond(-1, -1), beyond(1, -1), beyond(1, 1)]
    for quarter in range(4):
        sides = side[quarter] + side[(quarter + 1) % 4]
        yield side[quarter] >= 0
        yield corner[quarter].add(sides, alpha=DIAGONAL) >= 0


def uniform_bins() -> Tensor:
    """Return the 256×59 matrix that sums the patterns of each bin; the last bin is for non-uniform patterns."""
    table = torch.zeros(1 << NEIGHBOURS, BINS)
    bins = iter(range(BINS - 1))
    for pattern in range(1 << NEIGHBOURS):
        turned = pattern >> 1 | (pattern & 1) << (NEIGHBOURS - 1)
        table[pattern, next(bins) if (pattern ^ turned).bit_count() <= 2 else BINS - 1] = 1
    return table
