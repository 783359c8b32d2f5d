"""MiniFASNet, a pruned MobileFaceNet for attack detection, with three classes of which the second is bona fide.

Minivision published four variants with their channel tables, and weights for two of them (Silent-Face-Anti-Spoofing,
2020, Apache-2.0). Bottlenecks have the numbers of inner channels that pruning left. ``v1se`` and ``v2se`` scale the
channels of each stage's last block by squeeze-and-excitation (J. Hu, L. Shen, G. Sun, CVPR 2018). The dropout of the
authors' training is left out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from fedvisage.nn.face_networks import Bottleneck, mobile_convolution
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.vit import last_side
from fedvisage.recipe import Section

Variant = Literal["v1", "v1se", "v2", "v2se"]

FIRST, LAST, FEATURES, CLASSES = 32, 512, 128, 3
WIDTHS = (64, 128, 128)
"""Channels of the three stages."""
INNER = {
    "v1": ((103, 13, 26, 13, 52), (231, 154, 52, 26, 52, 26, 26), (308, 26, 26)),
    "v2": ((103, 13, 13, 13, 13), (231, 231, 52, 26, 77, 26, 26), (308, 26, 26)),
}
"""Inner channels of each stage's blocks; the first block of a stage has stride 2."""
REDUCTION = 4
"""Channels of a block over those of its squeeze."""


class MiniFASNet(Section):
    """The variant of MiniFASNet."""

    variant: Variant = "v2"
    """v1, v2, or one of them with squeeze-and-excitation: v1se, v2se."""


class ScalePixels(nn.Module):
    """Scales pixels from [0, 1] to [0, 255], which the published weights expect."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the scaled pixels."""
        return images * 255.0


class SqueezeExcitation(nn.Module):
    """Scales each channel by a number between 0 and 1, computed from the means of all channels."""

    def __init__(self, width: int) -> None:
        """Build the two layers of the gate."""
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            *mobile_convolution(width, width // REDUCTION, side=1),
            nn.ReLU(),
            *mobile_convolution(width // REDUCTION, width, side=1),
            nn.Sigmoid(),
        )

    def forward(self, values: Tensor) -> Tensor:
        """Scale the channels."""
        scaled: Tensor = values * self.gate(values)
        return scaled


def minifasnet(options: MiniFASNet, colour: str, size: int = 80) -> nn.Sequential:
    """Build a MiniFASNet with random weights, from images in [0, 1] to three logits."""
    variant, excited = options.variant.removesuffix("se"), options.variant.endswith("se")
    parts: OrderedDict[str, nn.Module] = OrderedDict(scaled=ScalePixels())
    parts["convolution"] = nn.Sequential(*mobile_convolution(CHANNELS[colour], FIRST, stride=2), nn.PReLU(FIRST))
    parts["depthwise"] = nn.Sequential(*mobile_convolution(FIRST, FIRST, groups=FIRST), nn.PReLU(FIRST))
    inputs = FIRST
    for number, (width, (first, *rest)) in enumerate(zip(WIDTHS, INNER[variant], strict=True), 1):
        blocks = [Bottleneck(inputs, width, first, 2), *(Bottleneck(width, width, inner, 1) for inner in rest)]
        if excited:
            blocks[-1].residual.append(SqueezeExcitation(width))
        parts[f"stage{number}"], inputs = nn.Sequential(*blocks), width
    parts["wide"] = nn.Sequential(*mobile_convolution(inputs, LAST, side=1), nn.PReLU(LAST))
    whole_map = nn.Conv2d(LAST, LAST, last_side(size), groups=LAST, bias=False)
    parts["global"] = nn.Sequential(whole_map, nn.BatchNorm2d(LAST), nn.Flatten())
    parts["features"] = nn.Sequential(nn.Linear(LAST, FEATURES, bias=False), nn.BatchNorm1d(FEATURES))
    parts["classes"] = nn.Linear(FEATURES, CLASSES, bias=False)
    return nn.Sequential(parts)


def live_logit(logits: Tensor) -> Tensor:
    """Return the log-odds of the bona fide class, one row per image."""
    live, others = logits[:, 1:2], logits[:, ::2]
    return live - others.logsumexp(dim=1, keepdim=True)
