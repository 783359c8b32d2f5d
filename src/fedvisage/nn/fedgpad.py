"""FedGPAD's five networks, after the paper's Table II.

``width`` scales every number of channels; at 64 it is the table's, and the parameter counts are those of the paper's
layers: encoder 3,353,496, depth estimator 517,058, decoder 11,178,944, classifier 263,169. Convolutions carry no bias
where BatchNorm follows. The other parts also go with FedPAD's ResNet-18 as both encoders, so that losses can be
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
"""The gain of convolutions, and how far scales of BatchNorm lie apart, in the authors' code."""


class Width(Section):
    """The width of the first convolution; the paper's is 64."""

    width: int = Field(FULL_WIDTH, ge=8, le=FULL_WIDTH, multiple_of=8)
    """Channels of the first stage; 64 is the papers', less is for CPUs."""


Resizing = Literal["bilinear", "pooled"]
Drawing = Literal["xavier", "released"]
Stem = Literal["plain", "unshuffled"]


class TableII(Width):
    """The width, and where the authors' code differs from the paper's text.

    ``classifier``: two layers, or the code's one. ``depth_input``: poolings become 32×32 by ``bilinear`` interpolation,
    which at full size looks at a quarter of the first one's values, or are ``pooled`` to it. ``initialisation``: by
    ``xavier``'s uniform rule, or as ``released``. ``specific``: the specific encoder begins with weights of its
    ``own``, or ``copied`` from the invariant one. What is not said is the first of each.

    Two keys are this package's own: another ``encoder``, and a ``stem`` that costs less.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"depth_input", "initialisation", "specific", "encoder", "stem"})
    classifier: Literal["two-layers", "linear"] = "two-layers"
    """Table II's classifier, or the single layer of the released code (``linear``)."""
    depth_input: Resizing | None = None
    """How poolings become the depth head's 32×32: bilinear, unless said, or pooled as in the released code."""
    initialisation: Drawing | None = None
    """How weights begin: xavier, unless said, or as released: small and normal. Encoders of ``resnet18`` begin as
    FedPAD's does, unless it is said."""
    specific: Literal["own", "copied"] | None = None
    """The specific encoder begins with its own weights, unless said, or as a copy of the invariant one, as released."""
    encoder: Literal["table2", "resnet18"] | None = None
    """Both encoders: Table II's, unless said, or FedPAD's ResNet-18, to compare losses on one network."""
    stem: Stem | None = None
    """How Table II's encoders begin: plain, unless said, or unshuffled: four pixels become channels of one, which takes
    the place of the first pooling."""

    @model_validator(mode="after")
    def _the_stem_is_of_table_ii(self) -> TableII:
        if self.encoder == "resnet18" and self.stem is not None:
            raise ValueError("stem is for Table II's encoders; leave it out with encoder: resnet18")
        return self


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
    """The part of an encoder that the depth estimator looks at: ten convolutions and three poolings.

    Four of the convolutions see every pixel and take most of the time. With an ``unshuffled`` stem they see each 2×2
    pixels as one of four times the channels; the first pooling, which would halve the side once more, is left out, so
    that all later layers and the three maps are of the sizes that they have.
    """

    def __init__(self, inputs: int, width: int, stem: Stem = "plain") -> None:
        """Build conv1-1 to conv1-10."""
        super().__init__()
        c64, c128, c196 = (scaled(channels, width) for channels in (64, 128, 196))
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


class Encoder(Front):
    """Domain-invariant or domain-specific feature extractor: thirteen convolutions and five poolings."""

    def __init__(self, inputs: int, width: int, stem: Stem = "plain") -> None:
        """Build conv1-1 to conv1-13."""
        super().__init__(inputs, width, stem)
        c128, c256, c512 = (scaled(channels, width) for channels in (128, 256, 512))
        self.tail = nn.Sequential(
            convolution(c128, c128), nn.MaxPool2d(2), convolution(c128, c256), nn.MaxPool2d(2), convolution(c256, c512)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the pooled features, and pool1-1 to pool1-3, which the depth estimator looks at."""
        pooled = self.pools(images)
        return adaptive_avg_pool2d(self.tail(pooled[-1]), 1).flatten(1), pooled


class ResNetEncoder(nn.Module):
    """FedPAD's ResNet-18 without its last layer, as an encoder.

    The depth estimator looks at a half, a quarter and an eighth of the side, as in Table II: at what comes out of the
    first convolution and of the first two stages.
    """

    def __init__(self, colour: str, width: int) -> None:
        """Build the network as FedPAD does, with the weights that it draws there, and take its last layer off."""
        super().__init__()
        self.trunk = resnet18(ResNet18(width=width), colour)
        self.trunk.set_submodule("fc", nn.Identity())

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the pooled features, and the three maps that the depth estimator looks at."""
        layer = self.trunk.get_submodule
        first: Tensor = layer("act1")(layer("bn1")(layer("conv1")(images)))
        second: Tensor = layer("layer1")(layer("maxpool")(first))
        third: Tensor = layer("layer2")(second)
        last: Tensor = layer("layer4")(layer("layer3")(third))
        return adaptive_avg_pool2d(last, 1).flatten(1), [first, second, third]


def encoder(options: TableII, colour: str) -> nn.Module:
    """Return the encoder that a recipe wants, domain-invariant or domain-specific."""
    if options.encoder == "resnet18":
        return ResNetEncoder(colour, options.width)
    return Encoder(CHANNELS[colour], options.width, options.stem or "plain")


class DepthEstimator(nn.Module):
    """A depth map of 32×32 from the encoder's first three poolings."""

    def __init__(self, width: int, resizing: Resizing = "bilinear", channels: int | None = None) -> None:
        """Build conv4-1 to conv4-3 on so many channels, those of Table II's three poolings unless said."""
        super().__init__()
        self.resizing = resizing
        c128, c64 = scaled(128, width), scaled(64, width)
        first = convolution(3 * c128 if channels is None else channels, c128)
        self.layers = nn.Sequential(first, convolution(c128, c64), convolution(c64, 1))

    def forward(self, pooled: list[Tensor]) -> Tensor:
        """Resize the three maps to one size, join them, and estimate depth."""
        side = DEPTH_SIZE, DEPTH_SIZE
        if self.resizing == "pooled":
            maps = [adaptive_avg_pool2d(one, side) for one in pooled]
        else:
            maps = [interpolate(one, side, mode="bilinear", align_corners=False) for one in pooled]
        return torch.as_tensor(self.layers(torch.cat(maps, dim=1))).squeeze(1)


def depth_estimator(options: TableII) -> DepthEstimator:
    """Return the depth estimator that fits the encoder that a recipe wants."""
    of_resnet = FULL_WIDTH + 3 * options.width  # whose first map has 64 channels at any width
    channels = of_resnet if options.encoder == "resnet18" else None
    return DepthEstimator(options.width, options.depth_input or "bilinear", channels)


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
