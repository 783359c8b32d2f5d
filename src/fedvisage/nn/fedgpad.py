"""FedGPAD's five networks, after the paper's Table II.

``width`` scales every number of channels; at 64 it is the table's, and the parameter counts are those of the paper's
layers: encoder 3,353,496, depth estimator 517,058, decoder 11,178,944, classifier 263,169. Convolutions carry no bias
where BatchNorm follows.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from fedvisage.recipe import Section

DEPTH_SIZE = 32
FULL_WIDTH = 64
SLOPE = 0.2
RELEASED = 0.02
"""The gain of convolutions, and how far scales of BatchNorm lie apart, in the authors' code."""


class Width(Section):
    """The width of the first convolution; the paper's is 64."""

    width: int = Field(FULL_WIDTH, ge=8, le=FULL_WIDTH, multiple_of=8)
    """Channels of the first stage; 64 is the papers', less is for CPUs."""


Resizing = Literal["bilinear", "pooled"]
Drawing = Literal["xavier", "released"]


class TableII(Width):
    """The width, and where the authors' code differs from the paper's text.

    ``classifier``: two layers, or the code's one. ``depth_input``: poolings become 32×32 by ``bilinear`` interpolation,
    which at full size looks at a quarter of the first one's values, or are ``pooled`` to it. ``initialisation``: by
    ``xavier``'s uniform rule, or as ``released``. ``specific``: the specific encoder begins with weights of its
    ``own``, or ``copied`` from the invariant one. What is not said is the first of each.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"depth_input", "initialisation", "specific"})
    classifier: Literal["two-layers", "linear"] = "two-layers"
    """Table II's classifier, or the single layer of the released code (``linear``)."""
    depth_input: Resizing | None = None
    """How poolings become the depth head's 32×32: bilinear, unless said, or pooled as in the released code."""
    initialisation: Drawing | None = None
    """How weights begin: xavier, unless said, or as released: small and normal."""
    specific: Literal["own", "copied"] | None = None
    """The specific encoder begins with its own weights, unless said, or as a copy of the invariant one, as released."""


def scaled(channels: int, width: int) -> int:
    """Return a number of channels of the table at another width: a multiple of 4, as all of the table's are.

    Processors want whole vectors: 48 channels for 49, at width 16, make a step a fifth faster.
    """
    return max(4, channels * width // FULL_WIDTH // 4 * 4)


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """A 3×3 convolution with BatchNorm and ReLU."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Front(nn.Module):
    """The part of an encoder that the depth estimator looks at: ten convolutions and three poolings."""

    def __init__(self, inputs: int, width: int) -> None:
        """Build conv1-1 to conv1-10."""
        super().__init__()
        c64, c128, c196 = (scaled(channels, width) for channels in (64, 128, 196))
        self.stem = convolution(inputs, c64)
        self.blocks = nn.ModuleList(
            nn.Sequential(convolution(first, c128), convolution(c128, c196), convolution(c196, c128), nn.MaxPool2d(2))
            for first in (c64, c128, c128)
        )

    def pools(self, images: Tensor) -> list[Tensor]:
        """Return pool1-1 to pool1-3."""
        pooled, values = [], self.stem(images)
        for block in self.blocks:
            values = block(values)
            pooled.append(values)
        return pooled


class Encoder(Front):
    """Domain-invariant or domain-specific feature extractor: thirteen convolutions and five poolings."""

    def __init__(self, inputs: int, width: int) -> None:
        """Build conv1-1 to conv1-13."""
        super().__init__(inputs, width)
        c128, c256, c512 = (scaled(channels, width) for channels in (128, 256, 512))
        self.tail = nn.Sequential(
            convolution(c128, c128), nn.MaxPool2d(2), convolution(c128, c256), nn.MaxPool2d(2), convolution(c256, c512)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the pooled features, and pool1-1 to pool1-3, which the depth estimator looks at."""
        pooled = self.pools(images)
        return adaptive_avg_pool2d(self.tail(pooled[-1]), 1).flatten(1), pooled


class DepthEstimator(nn.Module):
    """A depth map of 32×32 from the encoder's first three poolings."""

    def __init__(self, width: int, resizing: Resizing = "bilinear") -> None:
        """Build conv4-1 to conv4-3."""
        super().__init__()
        self.resizing = resizing
        c128, c64 = scaled(128, width), scaled(64, width)
        self.layers = nn.Sequential(convolution(3 * c128, c128), convolution(c128, c64), convolution(c64, 1))

    def forward(self, pooled: list[Tensor]) -> Tensor:
        """Resize the three maps to one size, join them, and estimate depth."""
        side = DEPTH_SIZE, DEPTH_SIZE
        if self.resizing == "pooled":
            maps = [adaptive_avg_pool2d(one, side) for one in pooled]
        else:
            maps = [interpolate(one, side, mode="bilinear", align_corners=False) for one in pooled]
        return torch.as_tensor(self.layers(torch.cat(maps, dim=1))).squeeze(1)


class DepthNetwork(Front):
    """From images to depth maps, with nothing beside: the encoder's front and the depth estimator."""

    def __init__(self, inputs: int, width: int) -> None:
        """Build conv1-1 to conv1-10 and conv4-1 to conv4-3."""
        super().__init__(inputs, width)
        self.estimator = DepthEstimator(width)

    def forward(self, images: Tensor) -> Tensor:
        """Return the estimated maps, B×32×32."""
        return torch.as_tensor(self.estimator(self.pools(images)))


class Decoder(nn.Module):
    """The image again from the sum of both features: one fully connected layer and deconvolutions of stride 2."""

    def __init__(self, outputs: int, width: int, size: int) -> None:
        """Build fc2-1 and as many deconvolutions as the size, a multiple of 32, needs: six, from 4×4, at 256."""
        super().__init__()
        steps = next(count for count in range(6, 0, -1) if size % 2**count == 0 and size // 2**count >= 3)
        channels = [scaled(c, width) for c in (512, 512, 256, 128, 64, 32)][:steps]
        self.side, self.first = size // 2**steps, channels[0]
        self.spread = nn.Linear(scaled(512, width), self.first * self.side**2, bias=False)
        layers: list[nn.Module] = []
        for inputs, wide in zip(channels, [*channels[1:], outputs], strict=True):
            layers.append(nn.ConvTranspose2d(inputs, wide, 4, stride=2, padding=1, bias=False))
            if len(layers) < 3 * steps - 2:
                layers += [nn.BatchNorm2d(wide), nn.LeakyReLU(SLOPE, inplace=True)]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, features: Tensor) -> Tensor:
        """Return the reconstructed image."""
        return torch.as_tensor(self.layers(self.spread(features).view(-1, self.first, self.side, self.side)))


def classifier(options: TableII) -> nn.Module:
    """Return fc3-1 and fc3-2 (Table II), or the single layer of the authors' released code."""
    features = scaled(512, options.width)
    if options.classifier == "linear":
        return nn.Linear(features, 1)
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 1))


def initialise(net: nn.Module, drawing: Drawing = "xavier") -> None:
    """Draw all weights by Xavier's rule, or as the authors' code does; biases start at zero."""
    if drawing == "released":
        _as_released(net)
        return
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _as_released(net: nn.Module) -> None:
    """Draw weights small and normal, BatchNorm's scales around 1; deconvolutions keep what torch draws."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(module.weight, gain=RELEASED)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, RELEASED)
            nn.init.zeros_(module.bias)
