"""ResNet-18 for presentation attack detection: FedPAD's network (§IV-A4), six input channels, one live logit."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from pydantic import Field
from torch import Tensor, nn

from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.norms import Norm, replace_batchnorm
from fedvisage.recipe import Section


class ResNet18(Section):
    """The width of the first stage, 64 as in the paper, and the normalisation; narrower networks are for CPUs."""

    unset: ClassVar[frozenset[str]] = frozenset({"norm"})
    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 as in the papers, less for CPUs."""
    norm: Norm | None = None
    """``batch`` by default. ``group``: GroupNorm. ``weight-standardised``: no normalisation, standardised convolutions
    (FedWon). Both do without statistics of the sites' images."""

    @property
    def without_batchnorm(self) -> str:
        """Return the key and its value if the network has no BatchNorm, else nothing."""
        return "" if self.norm in (None, "batch") else f"network.norm: {self.norm}"


STEM = 64
"""Channels of the first convolution at every width, as in timm's narrow ResNets."""
STAGES = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3", "layer4")


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions, added to the input, which a 1×1 convolution adapts if the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        """Halve height and width if the stride is 2."""
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.act2 = nn.ReLU(inplace=True)
        self.downsample = None
        if (inputs, stride) != (width, 1):
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, values: Tensor) -> Tensor:
        """Return the block's maps."""
        change = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(values)))))
        change += values if self.downsample is None else self.downsample(values)
        return cast(Tensor, self.act2(change))


class ResNet(nn.Module):
    """ResNet-18 with one logit, with the names, and at the same seed the initial weights, of timm's.

    K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, Table 1. It stands here
    because importing timm takes 33 MiB and 0.7 s of processor time in each process that trains it.
    """

    def __init__(self, channels: int, width: int) -> None:
        """Draw the weights; each residual branch begins as zero."""
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, STEM, 7, 2, padding=3, bias=False), nn.BatchNorm2d(STEM)
        self.act1, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        inputs = STEM
        for stage, outputs in enumerate((width, 2 * width, 4 * width, 8 * width), start=1):
            first = ResidualBlock(inputs, outputs, stride=1 if stage == 1 else 2)
            self.add_module(f"layer{stage}", nn.Sequential(first, ResidualBlock(outputs, outputs, stride=1)))
            inputs = outputs
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(inputs, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, ResidualBlock):
                nn.init.zeros_(module.bn2.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return a logit per image."""
        return cast(Tensor, self.fc(pooled_features(self, images)))


def resnet18(options: ResNet18, colour: str) -> nn.Module:
    """Build the network with random weights from the caller's random stream."""
    return replace_batchnorm(ResNet(CHANNELS[colour], options.width), options.norm or "batch")


def pooled_features(net: nn.Module, images: Tensor, change: Callable[[str, Tensor], Tensor] | None = None) -> Tensor:
    """Return the input of the last layer: the pooled features shown in the papers' t-SNE figures.

    ``change`` maps the name of a stage and its maps to the maps that the next stage receives.
    """
    values = images
    for name in STAGES:
        values = getattr(net, name)(values)
        if change is not None:
            values = change(name, values)
    return cast(Tensor, net.global_pool(values))  # type: ignore[operator]
