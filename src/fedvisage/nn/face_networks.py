"""Face recognition networks by name (iResNet, MobileFaceNet, SphereFace, timm), and public class centres."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from fedvisage.nn.adapters import FaceAdapters, with_adapters
from fedvisage.nn.timm_network import NormalisedNetwork, TimmNetwork, load_weights, timm_network
from fedvisage.nn.vit import Backbone, CentrePixels, NormalisePixels, last_side
from fedvisage.recipe import Input

# iResNet


IRESNET_BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
IRESNET_FACTORS = (1, 1, 2, 4, 8)
"""Width of the first convolution and of each stage, as multiples of the first."""


class IResNet(Backbone):
    """Depth and width of an iResNet."""

    depth: Literal[18, 50, 100] = 50


class IResNetBlock(nn.Module):
    """BN – conv – BN – PReLU – conv – BN, added to the input, which a 1×1 convolution adapts if the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        """Build the layers; the second convolution has the stride."""
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(inputs),
            _iresnet_convolution(inputs, width),
            nn.BatchNorm2d(width),
            nn.PReLU(width),
            _iresnet_convolution(width, width, stride=stride),
            nn.BatchNorm2d(width),
        )
        same = stride == 1 and inputs == width
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(_iresnet_convolution(inputs, width, side=1, stride=stride), nn.BatchNorm2d(width))
        )

    def forward(self, values: Tensor) -> Tensor:
        """Add the residual to the shortcut."""
        features: Tensor = self.shortcut(values) + self.residual(values)
        return features


def iresnet(options: IResNet, size: int = 112) -> nn.Sequential:
    """Build an iResNet, the face variant of ResNet, with random weights: from images in [0, 1] to features.

    J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019, §3.1 (its
    "LResNet-E-IR"), as built by the authors' released PyTorch code. It differs from a ResNet for photographs: the first
    convolution is 3×3 and keeps the size; every block is BN – conv – BN – PReLU – conv – BN with the stride in the
    second convolution, also at depth 50; and the last stage is followed by BN – fully connected – BN, with the last
    scale fixed at 1.

    At 112 pixels: 24,025,600 parameters (depth 18) and 43,590,848 (depth 50).
    """
    widths = [options.width * factor for factor in IRESNET_FACTORS]
    parts: OrderedDict[str, nn.Module] = OrderedDict(centred=CentrePixels())
    parts["stem"] = nn.Sequential(_iresnet_convolution(3, widths[0]), nn.BatchNorm2d(widths[0]), nn.PReLU(widths[0]))
    for number, (blocks, (inputs, width)) in enumerate(
        zip(IRESNET_BLOCKS[options.depth], pairwise(widths), strict=True), 1
    ):
        rest = (IResNetBlock(width, width, 1) for _ in range(blocks - 1))
        parts[f"stage{number}"] = nn.Sequential(IResNetBlock(inputs, width, 2), *rest)
    parts["norm"] = nn.BatchNorm2d(widths[-1])
    parts["flat"] = nn.Flatten()
    parts["linear"] = nn.Linear(widths[-1] * last_side(size) ** 2, options.embedding)
    parts["features"] = nn.BatchNorm1d(options.embedding)
    parts["features"].weight.requires_grad_(False)
    return nn.Sequential(parts)


def _iresnet_convolution(inputs: int, outputs: int, *, side: int = 3, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)
    nn.init.normal_(layer.weight, std=0.1)
    return layer


# MobileFaceNet


BOTTLENECKS = ((2, 1, 5, 2), (4, 2, 1, 2), (2, 2, 6, 1), (4, 2, 1, 2), (2, 2, 2, 1))
"""Table 1: expansion t, width c as a multiple of the first convolution's, repetitions n, stride s of the first."""
Activation = Callable[[int], nn.Module]
"""Builds the activation for a number of channels."""

LAST = 8
"""Width before the embedding, as a multiple of the first convolution's."""


class MobileFaceNet(Backbone):
    """Width of a MobileFaceNet."""


class Bottleneck(nn.Module):
    """Expand, convolve each channel, project; added to the input if the shape does not change."""

    def __init__(self, inputs: int, width: int, inner: int, stride: int, activation: Activation = nn.PReLU) -> None:
        """Build the layers; the depthwise convolution has the stride and ``inner`` channels."""
        super().__init__()
        self.residual = nn.Sequential(
            *mobile_convolution(inputs, inner, side=1),
            activation(inner),
            *mobile_convolution(inner, inner, stride=stride, groups=inner),
            activation(inner),
            *mobile_convolution(inner, width, side=1),
        )
        self.added = stride == 1 and inputs == width

    def forward(self, values: Tensor) -> Tensor:
        """Apply the block, and add the input if the shapes agree."""
        residual: Tensor = self.residual(values)
        return values + residual if self.added else residual


def mobilefacenet(options: MobileFaceNet, size: int = 112) -> nn.Sequential:
    """Build a MobileFaceNet, a small network for phones, with random weights: from images in [0, 1] to features.

    S. Chen, Y. Liu, X. Gao, Z. Han, "MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification on Mobile
    Devices", CCBR 2018, Table 1. It uses MobileNetV2's bottlenecks with PReLU. A depthwise convolution over the whole
    last map, which can distinguish its middle from its corners, replaces global average pooling. At 112 pixels:
    1,200,512 parameters; with the paper's 128-dimensional features 1,003,136, which is its 0.99 million if BatchNorm is
    counted as a bias.
    """
    width = options.width
    parts: OrderedDict[str, nn.Module] = OrderedDict(centred=CentrePixels())
    parts["convolution"] = nn.Sequential(*mobile_convolution(3, width, stride=2), nn.PReLU(width))
    parts["depthwise"] = nn.Sequential(*mobile_convolution(width, width, groups=width), nn.PReLU(width))
    parts |= _from_bottlenecks(options, size, nn.PReLU)
    return nn.Sequential(parts)


def mobilefacenet_dw(options: MobileFaceNet, size: int = 112) -> nn.Sequential:
    """Build ``mobilefacenet-dw``, a variant with one more layer before the bottlenecks.

    Y. Liu published it as PyTorch code ("foamliu"). A 1×1 convolution follows the depthwise one, ReLU6 replaces PReLU
    (ReLU around that layer), and pixels are normalised as for ImageNet. Its features have 128 dimensions.
    """
    width = options.width
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalised=NormalisePixels())
    parts["convolution"] = nn.Sequential(*mobile_convolution(3, width, stride=2), nn.ReLU6(inplace=True))
    parts["depthwise"] = nn.Sequential(*mobile_convolution(width, width, groups=width), nn.ReLU(inplace=True))
    parts["pointwise"] = nn.Sequential(*mobile_convolution(width, width, side=1), nn.ReLU(inplace=True))
    parts |= _from_bottlenecks(options, size, lambda _: nn.ReLU6(inplace=True))
    return nn.Sequential(parts)


def _from_bottlenecks(options: MobileFaceNet, size: int, activation: Activation) -> OrderedDict[str, nn.Module]:
    """Build the bottlenecks and all later layers."""
    width, last = options.width, LAST * options.width
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = width
    for number, (expansion, factor, repetitions, stride) in enumerate(BOTTLENECKS, 1):
        outputs = factor * width
        first = Bottleneck(inputs, outputs, inputs * expansion, stride, activation)
        rest = (Bottleneck(outputs, outputs, outputs * expansion, 1, activation) for _ in range(repetitions - 1))
        parts[f"stage{number}"], inputs = nn.Sequential(first, *rest), outputs
    parts["wide"] = nn.Sequential(*mobile_convolution(inputs, last, side=1), activation(last))
    global_convolution = nn.Conv2d(last, last, last_side(size), groups=last, bias=False)
    parts["global"] = nn.Sequential(global_convolution, nn.BatchNorm2d(last))
    parts["features"] = nn.Sequential(*mobile_convolution(last, options.embedding, side=1), nn.Flatten())
    return parts


def mobile_convolution(
    inputs: int, outputs: int, *, side: int = 3, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution that keeps the map's size, or divides it by the stride, and its BatchNorm."""
    layer = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(outputs)


# SphereFace


SPHERE_BLOCKS = {20: (1, 2, 4, 1), 64: (3, 7, 16, 3)}
SPHERE_FACTORS = (1, 2, 4, 8)
"""Width of each stage, as a multiple of the first."""


class Sphere(Backbone):
    """Depth and width of a SphereFace network."""

    depth: Literal[20, 64] = 64


class SphereBlock(nn.Module):
    """Two convolutions with PReLU, added to the input."""

    def __init__(self, width: int) -> None:
        """Build the layers, all of the same width."""
        super().__init__()
        self.conv1, self.prelu1 = _sphere_convolution(width), nn.PReLU(width)
        self.conv2, self.prelu2 = _sphere_convolution(width), nn.PReLU(width)

    def forward(self, values: Tensor) -> Tensor:
        """Add the residual to the input."""
        residual: Tensor = self.prelu2(self.conv2(self.prelu1(self.conv1(values))))
        return values + residual


def sphere(options: Sphere, size: int = 112) -> nn.Sequential:
    """Build Sphere20 or Sphere64, FedFR's residual backbone without BatchNorm, from images in [0, 1] to features.

    W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017, with the stages of FedFR's
    released code: each has a convolution of stride 2 and residual blocks of two convolutions, with PReLU after every
    convolution; a fully connected layer ends the network. At 112 pixels: 24,501,952 parameters (Sphere20) and
    49,726,656 (Sphere64, which has 62 convolutions).

    Convolutions at the start of a stage have a bias and Xavier's initialisation. Those in blocks have no bias and start
    from a normal distribution with standard deviation 0.01, so that a block is initially close to the identity (FedFR's
    released code).
    """
    widths = [3, *(options.width * factor for factor in SPHERE_FACTORS)]
    parts: OrderedDict[str, nn.Module] = OrderedDict(centred=CentrePixels())
    for number, (blocks, (inputs, width)) in enumerate(
        zip(SPHERE_BLOCKS[options.depth], pairwise(widths), strict=True), 1
    ):
        parts[f"stage{number}"] = nn.Sequential(
            _sphere_stage_start(nn.Conv2d(inputs, width, 3, stride=2, padding=1)),
            nn.PReLU(width),
            *(SphereBlock(width) for _ in range(blocks)),
        )
    parts["flat"] = nn.Flatten()
    parts["features"] = _sphere_stage_start(nn.Linear(widths[-1] * last_side(size) ** 2, options.embedding))
    return nn.Sequential(parts)


def _sphere_stage_start(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def _sphere_convolution(width: int) -> nn.Conv2d:
    layer = nn.Conv2d(width, width, 3, padding=1, bias=False)
    nn.init.normal_(layer.weight, std=0.01)
    return layer


NetworkName = Literal[
    "sphere20",
    "sphere64",
    "iresnet18",
    "iresnet50",
    "iresnet100",
    "mobilefacenet",
    "mobilefacenet-dw",
    "timm-embedding",
]


class FaceNetwork(Backbone):
    """The name, width and feature length of a face recognition network.

    ``timm-embedding`` is any timm image network, ``arch``, with a head for features; its initial ``weights`` can come
    from a safetensors file of timm. With ``adapters`` an iResNet is frozen, and small additions to it are trained and
    sent.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"arch", "weights", "adapters"})
    name: NetworkName = "sphere64"
    """The backbone."""
    arch: str | None = None
    """timm-embedding: name of a timm architecture."""
    weights: str | None = None
    """timm-embedding: a safetensors file with its initial weights; nothing is downloaded. With adapters: a file written
    by `fedvisage model convert`, or the model of a finished run, which must exist on each machine."""
    adapters: FaceAdapters | None = None
    """iresnet18, iresnet50 and iresnet100: freeze the network and train these additions to it."""

    @model_validator(mode="after")
    def _arch_is_for_timm(self) -> FaceNetwork:
        if (self.arch is None) == (self.name == "timm-embedding"):
            raise ValueError("arch requires the network timm-embedding, and names its timm architecture")
        if self.adapters is not None and not self.name.startswith("iresnet"):
            raise ValueError(f"adapters require iresnet18, iresnet50 or iresnet100, not {self.name}")
        if self.weights is not None and self.name != "timm-embedding" and self.adapters is None:
            raise ValueError(
                f"weights requires timm-embedding or adapters; {self.name} starts from training.start or pretrain"
            )
        return self


def face_network(options: FaceNetwork, size: int) -> nn.Module:
    """Build a network with random weights, from images in [0, 1] to features; adapters freeze it."""
    shape = {"width": options.width, "embedding": options.embedding}
    builders: dict[str, Callable[[], nn.Sequential]] = {
        "sphere20": lambda: sphere(Sphere(depth=20, **shape), size),
        "sphere64": lambda: sphere(Sphere(depth=64, **shape), size),
        "iresnet18": lambda: iresnet(IResNet(depth=18, **shape), size),
        "iresnet50": lambda: iresnet(IResNet(depth=50, **shape), size),
        "iresnet100": lambda: iresnet(IResNet(depth=100, **shape), size),
        "mobilefacenet": lambda: mobilefacenet(MobileFaceNet(**shape), size),
        "mobilefacenet-dw": lambda: mobilefacenet_dw(MobileFaceNet(**shape), size),
        "timm-embedding": lambda: timm_embedding(str(options.arch), options.embedding, size),
    }
    plain = builders[options.name]()
    return plain if options.adapters is None else with_adapters(plain, options.adapters, options.embedding)


def timm_embedding(arch: str, embedding: int, size: int) -> nn.Sequential:
    """Build a timm network with a recognition head: a linear layer followed by BatchNorm."""
    body = timm_network(TimmNetwork(arch=arch), Input(size=size, colour="rgb"), outputs=0)
    with torch.no_grad():
        width = body.eval()(torch.zeros(1, 3, size, size)).shape[1]
    return nn.Sequential(body.train(), nn.Linear(width, embedding, bias=False), nn.BatchNorm1d(embedding))


def load_backbone(network: nn.Module, path: Path) -> None:
    """Load a file's weights into the body of a timm network."""
    body = network.get_submodule("0")
    assert isinstance(body, NormalisedNetwork)
    load_weights(body, path)


class ClassCentres(nn.Module):
    """Class centres of identities, one per row; only their directions matter."""

    def __init__(self, identities: int, embedding: int) -> None:
        """Draw random directions."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(identities, embedding))
        nn.init.normal_(self.weight, std=0.01)
