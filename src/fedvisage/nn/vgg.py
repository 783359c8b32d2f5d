"""A plain VGG for matched averaging: layers in a row, nothing but convolutions, fully connected layers and ReLU.

The first six convolutions of VGG-11 (K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image
recognition", ICLR 2015, Table 1, column A) with the poolings between them, then global average pooling, so that any
image size fits, and two fully connected layers. There is no BatchNorm and no dropout.

Every layer is a part of its own, because matched averaging sends, matches and freezes single layers. What follows a
layer's weights up to the next ones works on each channel alone: a layer's outputs can be put in any order if the next
layer's inputs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from fedvisage.recipe import Section

LAYERS = (*(f"convolution{number}" for number in range(1, 7)), "hidden", "output")
FACTORS = (1, 2, 4, 4, 8, 8, 8)
"""The width of each layer but the last, in widths of the first."""
POOLED = ("convolution1", "convolution2", "convolution4")


class VGG(Section):
    """The width of the first convolution is VGG's 64; narrower ones are for CPU recipes."""

    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 is the papers', less is for CPUs."""


def vgg(options: VGG, inputs: int, spare: int = 0) -> nn.ModuleDict:
    """Build the network; each layer but the last gets so many spare neurons, whose weights are zero.

    A spare neuron does not change the function, and no gradient reaches it: a network with and one without them are
    the same network until somebody gives one of them weights.
    """
    widths = [inputs, *(options.width * factor for factor in FACTORS), 1]
    spares = [0, *(spare for _ in FACTORS), 0]
    parts: dict[str, nn.Module] = {}
    for name, real, extra in zip(LAYERS, pairwise(widths), pairwise(spares), strict=True):
        parts[name] = nn.Sequential(weights(name, *real, *extra), *after_weights(name))
    return nn.ModuleDict(parts)


def weights(name: str, inputs: int, outputs: int, spare_inputs: int, spare_outputs: int) -> nn.Conv2d | nn.Linear:
    """Return a layer whose weights between real neurons are drawn by He's rule for ReLU; all else is zero."""
    shape = (inputs + spare_inputs, outputs + spare_outputs)
    # The library's own drawing is left out: for places that stay zero it would move the stream.
    with torch.device("meta"):
        layer = nn.Linear(*shape) if name in ("hidden", "output") else nn.Conv2d(*shape, 3, padding=1)
    layer.to_empty(device="cpu")
    drawn = torch.empty(outputs, inputs, *layer.weight.shape[2:])
    nn.init.kaiming_normal_(drawn, nonlinearity="relu")
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:outputs, :inputs] = drawn
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def after_weights(name: str) -> list[nn.Module]:
    """Return what follows a layer's weights."""
    if name == "output":
        return []
    if name == "convolution6":
        return [nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return [nn.ReLU(inplace=True), nn.MaxPool2d(2)] if name in POOLED else [nn.ReLU(inplace=True)]


def through(net: nn.ModuleDict, values: Tensor, layers: Sequence[str]) -> Tensor:
    """Send values through some layers in a row."""
    for name in layers:
        values = net[name](values)
    return values
