"""iResNet-18, iResNet-50 and iResNet-100, the face variant of ResNet.

J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019, §3.1 (its "LResNet-E-IR"),
as the authors' released PyTorch code builds it. Unlike in a ResNet for photographs the first convolution is 3×3 and
keeps the size, every block is BN – conv – BN – PReLU – conv – BN with the stride in the second convolution, also at
depth 50, and what follows the last stage is BN – fully connected – BN, with the last scale held at 1.

At 112 pixels: 24,025,600 parameters (depth 18) and 43,590,848 (depth 50).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from fedvisage.nn.embedding import Backbone, Centred, last_side

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
FACTORS = (1, 1, 2, 4, 8)
"""The width of the first convolution and of each stage, in widths of the first."""


class IResNet(Backbone):
    """How many layers, and how wide."""

    depth: Literal[18, 50, 100] = 50


class Block(nn.Module):
    """BN – conv – BN – PReLU – conv – BN, added to what went in; a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        """The second convolution has the stride."""
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(inputs),
            _convolution(inputs, width),
            nn.BatchNorm2d(width),
            nn.PReLU(width),
            _convolution(width, width, stride=stride),
            nn.BatchNorm2d(width),
        )
        same = stride == 1 and inputs == width
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(_convolution(inputs, width, side=1, stride=stride), nn.BatchNorm2d(width))
        )

    def forward(self, values: Tensor) -> Tensor:
        """Add the residual."""
        features: Tensor = self.shortcut(values) + self.residual(values)
        return features


def iresnet(options: IResNet, size: int = 112) -> nn.Sequential:
    """Build the network with random weights: images in [0, 1] to features."""
    widths = [options.width * factor for factor in FACTORS]
    parts: OrderedDict[str, nn.Module] = OrderedDict(centred=Centred())
    parts["stem"] = nn.Sequential(_convolution(3, widths[0]), nn.BatchNorm2d(widths[0]), nn.PReLU(widths[0]))
    for number, (blocks, (inputs, width)) in enumerate(zip(BLOCKS[options.depth], pairwise(widths), strict=True), 1):
        rest = (Block(width, width, 1) for _ in range(blocks - 1))
        parts[f"stage{number}"] = nn.Sequential(Block(inputs, width, 2), *rest)
    parts["norm"] = nn.BatchNorm2d(widths[-1])
    parts["flat"] = nn.Flatten()
    parts["linear"] = nn.Linear(widths[-1] * last_side(size) ** 2, options.embedding)
    parts["features"] = nn.BatchNorm1d(options.embedding)
    parts["features"].weight.requires_grad_(False)
    return nn.Sequential(parts)


def _convolution(inputs: int, outputs: int, *, side: int = 3, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)
    nn.init.normal_(layer.weight, std=0.1)
    return layer
