"""A plain VGG for matched averaging, with only convolutions, fully connected layers and ReLU.

It consists of the first six convolutions of VGG-11 (K. Simonyan, A. Zisserman, "Very deep convolutional networks for
large-scale image recognition", ICLR 2015, Table 1, column A) with their poolings, global average pooling for any image
size, and two fully connected layers. It has no BatchNorm and no dropout.

Every layer is a separate part, because matched averaging sends, matches and freezes single layers. All operations
between the weights of two layers act on each channel separately, so a layer's outputs can be permuted together with the
next layer's inputs.
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
"""Width of each layer except the last, as a multiple of the first."""
POOLED = ("convolution1", "convolution2", "convolution4")


class VGG(Section):
    """The width of the first convolution: 64 as in VGG; narrower networks are for CPU recipes."""

    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 as in the papers, less for CPUs."""


def vgg(options: VGG, inputs: int, spare: int = 0) -> nn.ModuleDict:
    """Build the network; each layer except the last gets `spare` additional neurons with zero weights.

    A spare neuron does not change the function and receives no gradient. Networks with and without spare neurons are
    equivalent until a spare neuron gets weights.
    """
    widths = [inputs, *(options.width * factor for factor in FACTORS), 1]
    spares = [0, *(spare for _ in FACTORS), 0]
    parts: dict[str, nn.Module] = {}
    for name, real, extra in zip(LAYERS, pairwise(widths), pairwise(spares), strict=True):
        after: list[nn.Module] = [] if name == "output" else [nn.ReLU(inplace=True)]
        if name == "convolution6":
            after += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        elif name in POOLED:
            after.append(nn.MaxPool2d(2))
        parts[name] = nn.Sequential(weights(name, *real, *extra), *after)
    return nn.ModuleDict(parts)


def weights(name: str, inputs: int, outputs: int, spare_inputs: int, spare_outputs: int) -> nn.Conv2d | nn.Linear:
    """Return a layer whose weights between real neurons are drawn by He's rule for ReLU; all others are zero."""
    shape = (inputs + spare_inputs, outputs + spare_outputs)
    # Skip torch's own initialisation, which would advance the random stream for weights that stay zero.
    with torch.device("meta"):
        layer = nn.Linear(*shape) if name in ("hidden", "output") else nn.Conv2d(*shape, 3, padding=1)
    layer.to_empty(device="cpu")
    initial = torch.empty(outputs, inputs, *layer.weight.shape[2:])
    nn.init.kaiming_normal_(initial, nonlinearity="relu")
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:outputs, :inputs] = initial
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def apply_layers(net: nn.ModuleDict, values: Tensor, layers: Sequence[str]) -> Tensor:
    """Apply several layers in sequence."""
    for name in layers:
        values = net[name](values)
    return values
