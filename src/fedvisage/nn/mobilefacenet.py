"""MobileFaceNet: a small network for phones.

S. Chen, Y. Liu, X. Gao, Z. Han, "MobileFaceNets: Efficient CNNs for Accurate Real-Time Face Verification on Mobile
Devices", CCBR 2018, Table 1. Bottlenecks of MobileNetV2 with PReLU; in place of global average pooling a depthwise
convolution over the whole last map, which can tell its middle from its corners. At 112 pixels: 1,200,512 parameters;
with the paper's features of 128 numbers 1,003,136, its 0.99 million if BatchNorm is counted as a bias.

``mobilefacenet-dw`` is the variant that Y. Liu published as PyTorch code ("foamliu"): after the depthwise convolution a
convolution of one pixel, ReLU6 instead of PReLU (ReLU around that layer), and pixels normalised as for ImageNet. Its
features have 128 numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from fedvisage.nn.embedding import Backbone, Centred, Normalised, last_side

BOTTLENECKS = ((2, 1, 5, 2), (4, 2, 1, 2), (2, 2, 6, 1), (4, 2, 1, 2), (2, 2, 2, 1))
"""Table 1: expansion t, width c in widths of the first convolution, repetitions n, stride s of the first of them."""
Activation = Callable[[int], nn.Module]
"""Makes what follows a convolution with so many channels."""

LAST = 8
"""The width before the embedding, in widths of the first convolution."""


class MobileFaceNet(Backbone):
    """How wide."""


class Bottleneck(nn.Module):
    """Expand, convolve each channel, project; added to what went in where the shape stays."""

    def __init__(self, inputs: int, width: int, expansion: int, stride: int, activation: Activation = nn.PReLU) -> None:
        """The convolution of channels has the stride."""
        super().__init__()
        inner = inputs * expansion
        self.residual = nn.Sequential(
            *_convolution(inputs, inner, side=1),
            activation(inner),
            *_convolution(inner, inner, stride=stride, groups=inner),
            activation(inner),
            *_convolution(inner, width, side=1),
        )
        self.added = stride == 1 and inputs == width

    def forward(self, values: Tensor) -> Tensor:
        """Add the residual, if the shapes agree."""
        residual: Tensor = self.residual(values)
        return values + residual if self.added else residual


def mobilefacenet(options: MobileFaceNet, size: int = 112) -> nn.Sequential:
    """Build the network with random weights: images in [0, 1] to features."""
    width = options.width
    parts: OrderedDict[str, nn.Module] = OrderedDict(centred=Centred())
    parts["convolution"] = nn.Sequential(*_convolution(3, width, stride=2), nn.PReLU(width))
    parts["depthwise"] = nn.Sequential(*_convolution(width, width, groups=width), nn.PReLU(width))
    parts |= _from_bottlenecks(options, size, nn.PReLU)
    return nn.Sequential(parts)


def mobilefacenet_dw(options: MobileFaceNet, size: int = 112) -> nn.Sequential:
    """Build the variant with one more layer before the bottlenecks."""
    width = options.width
    parts: OrderedDict[str, nn.Module] = OrderedDict(normalised=Normalised())
    parts["convolution"] = nn.Sequential(*_convolution(3, width, stride=2), nn.ReLU6(inplace=True))
    parts["depthwise"] = nn.Sequential(*_convolution(width, width, groups=width), nn.ReLU(inplace=True))
    parts["pointwise"] = nn.Sequential(*_convolution(width, width, side=1), nn.ReLU(inplace=True))
    parts |= _from_bottlenecks(options, size, lambda _: nn.ReLU6(inplace=True))
    return nn.Sequential(parts)


def _from_bottlenecks(options: MobileFaceNet, size: int, activation: Activation) -> OrderedDict[str, nn.Module]:
    """Build the bottlenecks and what follows them."""
    width, last = options.width, LAST * options.width
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = width
    for number, (expansion, factor, repetitions, stride) in enumerate(BOTTLENECKS, 1):
        outputs = factor * width
        first = Bottleneck(inputs, outputs, expansion, stride, activation)
        rest = (Bottleneck(outputs, outputs, expansion, 1, activation) for _ in range(repetitions - 1))
        parts[f"stage{number}"], inputs = nn.Sequential(first, *rest), outputs
    parts["wide"] = nn.Sequential(*_convolution(inputs, last, side=1), activation(last))
    whole = nn.Conv2d(last, last, last_side(size), groups=last, bias=False)
    parts["global"] = nn.Sequential(whole, nn.BatchNorm2d(last))
    parts["features"] = nn.Sequential(*_convolution(last, options.embedding, side=1), nn.Flatten())
    return parts


def _convolution(
    inputs: int, outputs: int, *, side: int = 3, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    layer = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(outputs)
