"""FedGPAD's five networks (Table II of the paper).

``width`` scales all channel counts. At 64 it gives the table's networks, and the parameter counts are those of the
paper's layers: encoder 3,353,496, depth estimator 517,058, decoder 11,178,944, classifier 263,169. Convolutions before
BatchNorm have no bias. The other parts also work with FedPAD's ResNet-18 as both encoders, so that losses can be
compared on one network.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate, pixel_unshuffle

from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.recipe import Section

DEPTH_SIZE = 32
FULL_WIDTH = 64
SLOPE = 0.2
RELEASED = 0.02
"""Gain of convolutions and standard deviation of BatchNorm scales in the authors' code."""


class Width(Section):
    """The width of the first convolution; the paper's is 64."""

    width: int = Field(FULL_WIDTH, ge=8, le=FULL_WIDTH, multiple_of=8)
    """Channels of the first stage; 64 as in the papers, less for CPUs."""


Resizing = Literal["bilinear", "pooled"]
Initialisation = Literal["xavier", "released"]
Stem = Literal["plain", "unshuffled"]


class TableII(Width):
    """The width, and options where the authors' code differs from the paper's text.

    ``classifier``: two layers, or one as in the code. ``depth_input``: resizes poolings to 32×32 by ``bilinear``
    interpolation, which at full size reads a quarter of the first pooling's values, or by ``pooled`` averaging.
    ``initialisation``: ``xavier``'s uniform rule, or as ``released``. ``specific``: the specific encoder starts from
    its ``own`` weights, or from weights ``copied`` from the invariant one. The default is always the first option.

    Two keys are additions of this package: another ``encoder``, and a cheaper ``stem``.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"depth_input", "initialisation", "specific", "encoder", "stem"})
    classifier: Literal["two-layers", "linear"] = "two-layers"
    """Table II's classifier, or the single layer of the released code (``linear``)."""
    depth_input: Resizing | None = None
    """Resizing of poolings to the depth head's 32×32: bilinear by default, or pooled as in the released code."""
    initialisation: Initialisation | None = None
    """Initial weights: xavier by default, or released, which means small and normal. By default, encoders of
    ``resnet18`` use FedPAD's initialisation."""
    specific: Literal["own", "copied"] | None = None
    """Initial weights of the specific encoder: own by default, or copied from the invariant encoder as in the released
    code."""
    encoder: Literal["table2", "resnet18"] | None = None
    """Both encoders: Table II's by default, or FedPAD's ResNet-18, to compare losses on one network."""
    stem: Stem | None = None
    """Start of Table II's encoders: plain by default, or unshuffled, which turns 2×2 pixels into the channels of one
    and replaces the first pooling."""

    @model_validator(mode="after")
    def _the_stem_is_of_table_ii(self) -> TableII:
        if self.encoder == "resnet18" and self.stem is not None:
            raise ValueError("stem only applies to the encoders of Table II; remove it with encoder: resnet18")
        return self


def scale_channels(channels: int, width: int) -> int:
    """Return a channel count of the table at another width: a multiple of 4, like all counts of the table.

    Processors need full vectors: at width 16, using 48 channels instead of 49 makes a step a fifth faster.
    """
    return max(4, channels * width // FULL_WIDTH // 4 * 4)


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Return a 3×3 convolution with BatchNorm and ReLU."""
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class DepthFront(nn.Module):
    """The part of an encoder that feeds the depth estimator: ten convolutions and three poolings.

    Four of the convolutions run at full resolution and take most of the time. An ``unshuffled`` stem turns each 2×2
    pixels into one with four times the channels before these. The first pooling, which would halve the side again, is
    then omitted, so all later layers and the three maps keep their sizes.
    """

    def __init__(self, inputs: int, width: int, stem: Stem = "plain") -> None:
        """Build conv1-1 to conv1-10."""
        super().__init__()
        c64, c128, c196 = (scale_channels(channels, width) for channels in (64, 128, 196))
        self.unshuffled = stem == "unshuffled"
        self.stem = convolution(4 * inputs if self.unshuffled else inputs, c64)
        widths = ((first, c128, c196, c128) for first in (c64, c128, c128))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(convolution(before, after) for before, after in pairwise(wide)),
                *([] if self.unshuffled and not number else [nn.MaxPool2d(2)]),
            )
            for number, wide in enumerate(widths)
        )

    def pools(self, images: Tensor) -> list[Tensor]:
        """Return pool1-1 to pool1-3."""
        pooled, values = [], self.stem(pixel_unshuffle(images, 2) if self.unshuffled else images)
        for block in self.blocks:
            values = block(values)
            pooled.append(values)
        return pooled


class Encoder(DepthFront):
    """Domain-invariant or domain-specific feature extractor: thirteen convolutions and five poolings."""

    def __init__(self, inputs: int, width: int, stem: Stem = "plain") -> None:
        """Build conv1-1 to conv1-13."""
        super().__init__(inputs, width, stem)
        c128, c256, c512 = (scale_channels(channels, width) for channels in (128, 256, 512))
        self.tail = nn.Sequential(
            convolution(c128, c128), nn.MaxPool2d(2), convolution(c128, c256), nn.MaxPool2d(2), convolution(c256, c512)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the pooled features, and pool1-1 to pool1-3 for the depth estimator."""
        pooled = self.pools(images)
        return adaptive_avg_pool2d(self.tail(pooled[-1]), 1).flatten(1), pooled


class ResNetEncoder(nn.Module):
    """FedPAD's ResNet-18 without its last layer, as an encoder.

    As in Table II, the depth estimator reads maps at a half, a quarter and an eighth of the side: the outputs of the
    first convolution and of the first two stages.
    """

    def __init__(self, colour: str, width: int) -> None:
        """Build the network as FedPAD does, with the same random weights, and remove its last layer."""
        super().__init__()
        self.trunk = resnet18(ResNet18(width=width), colour)
        self.trunk.set_submodule("fc", nn.Identity())

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the pooled features and the three maps for the depth estimator."""
        layer = self.trunk.get_submodule
        first: Tensor = layer("act1")(layer("bn1")(layer("conv1")(images)))
        second: Tensor = layer("layer1")(layer("maxpool")(first))
        third: Tensor = layer("layer2")(second)
        last: Tensor = layer("layer4")(layer("layer3")(third))
        return adaptive_avg_pool2d(last, 1).flatten(1), [first, second, third]


def encoder(options: TableII, colour: str) -> nn.Module:
    """Return the encoder of a recipe, domain-invariant or domain-specific."""
    if options.encoder == "resnet18":
        return ResNetEncoder(colour, options.width)
    return Encoder(CHANNELS[colour], options.width, options.stem or "plain")


class DepthEstimator(nn.Module):
    """Estimates a 32×32 depth map from the encoder's first three poolings."""

    def __init__(self, width: int, resizing: Resizing = "bilinear", channels: int | None = None) -> None:
        """Build conv4-1 to conv4-3 for this number of input channels, by default that of Table II's three poolings."""
        super().__init__()
        self.resizing = resizing
        c128, c64 = scale_channels(128, width), scale_channels(64, width)
        first = convolution(3 * c128 if channels is None else channels, c128)
        self.layers = nn.Sequential(first, convolution(c128, c64), convolution(c64, 1))

    def forward(self, pooled: list[Tensor]) -> Tensor:
        """Resize the three maps to one size, concatenate them, and estimate depth."""
        side = DEPTH_SIZE, DEPTH_SIZE
        if self.resizing == "pooled":
            maps = [adaptive_avg_pool2d(values, side) for values in pooled]
        else:
            maps = [interpolate(values, side, mode="bilinear", align_corners=False) for values in pooled]
        return torch.as_tensor(self.layers(torch.cat(maps, dim=1))).squeeze(1)


def depth_estimator(options: TableII) -> DepthEstimator:
    """Return the depth estimator that matches the encoder of a recipe."""
    of_resnet = FULL_WIDTH + 3 * options.width  # its first map has 64 channels at any width
    channels = of_resnet if options.encoder == "resnet18" else None
    return DepthEstimator(options.width, options.depth_input or "bilinear", channels)


class DepthNetwork(DepthFront):
    """A network from images to depth maps: the encoder's front and the depth estimator."""

    def __init__(self, inputs: int, width: int) -> None:
        """Build conv1-1 to conv1-10 and conv4-1 to conv4-3."""
        super().__init__(inputs, width)
        self.estimator = DepthEstimator(width)

    def forward(self, images: Tensor) -> Tensor:
        """Return the estimated maps, B×32×32."""
        return torch.as_tensor(self.estimator(self.pools(images)))


class Decoder(nn.Module):
    """Reconstructs the image from the sum of both features: a fully connected layer and deconvolutions of stride 2."""

    def __init__(self, outputs: int, width: int, size: int) -> None:
        """Build fc2-1 and the deconvolutions for a size that is a multiple of 32; at 256 there are six, from 4×4."""
        super().__init__()
        # Use as many steps, up to six, as leave an integer side of at least 3.
        steps = next(count for count in range(6, 0, -1) if size % 2**count == 0 and size // 2**count >= 3)
        channels = [scale_channels(c, width) for c in (512, 512, 256, 128, 64, 32)][:steps]
        self.side, self.first = size // 2**steps, channels[0]
        self.spread = nn.Linear(scale_channels(512, width), self.first * self.side**2, bias=False)
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
    features = scale_channels(512, options.width)
    if options.classifier == "linear":
        return nn.Linear(features, 1)
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 1))


def initialise(net: nn.Module, drawing: Initialisation = "xavier") -> None:
    """Draw all weights by Xavier's rule or as in the authors' code; biases start at zero.

    The authors' code draws small normal weights, and BatchNorm scales around 1; its deconvolutions keep torch's
    initialisation.
    """
    released = drawing == "released"
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) or (isinstance(module, nn.ConvTranspose2d) and not released):
            if released:
                nn.init.xavier_normal_(module.weight, gain=RELEASED)
            else:
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d) and released:
            nn.init.normal_(module.weight, 1.0, RELEASED)
            nn.init.zeros_(module.bias)
