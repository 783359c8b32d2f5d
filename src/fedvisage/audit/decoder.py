"""A decoder from tokens to images, and how like the originals its images are.

Tokens lie on a square, one for each patch of 16 pixels. Four times the square is doubled in size, down to pixels; three
times by interpolation before a convolution, and the last time by laying channels side by side. SSIM is that of Z. Wang
et al., "Image quality assessment: from error visibility to structural similarity", 2004.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedvisage.streams import scoped, torch_rng

CHANNELS = (48, 32, 24, 16)
STEPS, BATCH, RATE = 250, 16, 3e-3
WINDOW = 11


class Decoder(nn.Module):
    """Tokens, images × tokens × width, to RGB images in [0, 1]."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, tokens: Tensor) -> None:
        """Make a decoder for such tokens; what is subtracted and divided by is their mean and deviation."""
        super().__init__()
        self.register_buffer("mean", tokens.mean(dim=0, keepdim=True))
        self.register_buffer("deviation", tokens.std(dim=(0, 1), keepdim=True) + 1e-6)
        layers: list[nn.Module] = [nn.Conv2d(tokens.shape[2], CHANNELS[0], 1)]
        for before, after in pairwise(CHANNELS):
            layers += [nn.GELU(), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(before, after, 3, padding=1)]
        self.layers = nn.Sequential(*layers, nn.GELU(), nn.Conv2d(CHANNELS[-1], 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, tokens: Tensor) -> Tensor:
        """Lay the tokens out as the square that they were cut from, and draw."""
        known = (tokens - self.mean) / self.deviation
        side = round(known.shape[1] ** 0.5)
        square = known.transpose(1, 2).reshape(len(known), -1, side, side)
        return torch.sigmoid(self.layers(square))


@dataclass(frozen=True)
class Quality:
    """Means over images: peak signal-to-noise ratio in decibels, and structural similarity."""

    psnr: float
    ssim: float


def learned(tokens: Tensor, images: Tensor, seed: int, steps: int) -> Decoder:
    """Train a decoder on pairs of tokens and images."""
    with scoped(seed, "decoder"):
        decoder = Decoder(tokens)
    draws = torch_rng(seed, "decoder batches")
    optimizer = torch.optim.Adam(decoder.parameters(), lr=RATE)
    for _ in range(steps):
        chosen = torch.randint(len(tokens), (BATCH,), generator=draws)
        loss = (decoder(tokens[chosen]) - images[chosen]).abs().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return decoder.eval()


def quality(found: Tensor, images: Tensor) -> Quality:
    """Compare images in [0, 1] with what was made of them."""
    from kornia.metrics import ssim

    errors = (found - images).square().mean(dim=(1, 2, 3)).clamp_min(1e-12)
    similarity = ssim(found, images, WINDOW).mean()
    return Quality(float((-10 * errors.log10()).mean()), float(similarity))
