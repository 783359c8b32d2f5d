"""Networks without BatchNorm: group normalisation, or standardised weights in place of any normalisation.

BatchNorm's running statistics describe the images of one site, and their mean those of none. Both substitutes compute
the same function in training and evaluation, and image by image.

Group normalisation: Y. Wu, K. He, "Group Normalization", ECCV 2018, Eq. 1–6: each image's channels are normalised in
groups. The paper has 32 groups; here narrow layers have fewer, so that a group has at least two channels.

FedWon: W. Zhuang, L. Lyu, "FedWon: Triumphing Multi-domain Federated Learning Without Normalization", ICLR 2024, with
the scaled weight standardisation of A. Brock, S. De, S. L. Smith, "Characterizing Signal Propagation to Close the
Performance Gap in Unnormalized ResNets", ICLR 2021, Eq. 1. For each output channel i with N weights,

    Ŵ_ij = γ (W_ij − µ_i) / (σ_i √N),    γ = √(2 / (1 − 1/π)) for ReLU.

Deviations from the papers: BatchNorm's learned scale and shift of each channel stay, with their initial values. The
last scale of each residual branch therefore starts at 0, which replaces the scaling of branches by Brock et al. (α, β).
We do not know if FedWon scales branches or learns a gain. Gradients are clipped only by the recipe.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

Norm = Literal["batch", "group", "weight-standardised"]

GROUPS = 32
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""γ: it keeps the variance of a convolution's outputs at 1 if its inputs come from ReLU."""
LEAST = 1e-4
"""Lower bound of N σ², as in the code of Brock et al."""


def standardise(weight: Tensor) -> Tensor:
    """Return Ŵ, the weights of a convolution with zero mean and fixed length for each output channel."""
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return RELU_GAIN * (weight - mean) * (weight[0].numel() * variance).clamp_min(LEAST).rsqrt()


class StandardisedConv2d(nn.Conv2d):
    """A convolution with standardised weights."""

    def forward(self, values: Tensor) -> Tensor:
        """Convolve with Ŵ."""
        weight = standardise(self.weight)
        return conv2d(values, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ScaleAndShift(nn.Module):
    """The learned scale and shift of each channel, without normalisation."""

    def __init__(self, channels: int) -> None:
        """Start from the identity."""
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, values: Tensor) -> Tensor:
        """Scale and shift the channels of maps."""
        return values * self.weight[:, None, None] + self.bias[:, None, None]


def replace_batchnorm(net: nn.Module, norm: Norm) -> nn.Module:
    """Replace the BatchNorm layers of a convolutional network; all weights keep their names and initial values."""
    layers = [] if norm == "batch" else list(net.named_modules())
    for name, layer in layers:
        if isinstance(layer, nn.BatchNorm2d):
            channels = layer.num_features
            group = nn.GroupNorm(math.gcd(GROUPS, channels // 2), channels, eps=layer.eps)
            new: nn.Module = group if norm == "group" else ScaleAndShift(channels)
        elif isinstance(layer, nn.Conv2d) and norm == "weight-standardised":
            # On the device without values, because the weights are those of the layer.
            sizes = layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding
            new = StandardisedConv2d(*sizes, bias=False, device="meta")  # type: ignore[arg-type]
        else:
            continue
        for key, parameter in layer.named_parameters():
            new.register_parameter(key, parameter)
        net.set_submodule(name, new)
    return net
