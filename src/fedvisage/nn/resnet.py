"""ResNet-18 for presentation attack detection: FedPAD's network (§IV-A4), six input channels, one live logit."""

from __future__ import annotations

from typing import cast

from pydantic import Field
from torch import Tensor, nn

from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import Section


class ResNet18(Section):
    """The width of the first stage: 64 as in the paper; narrower networks are for CPU recipes."""

    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 as in the papers, less for CPUs."""


def resnet18(options: ResNet18, colour: str) -> nn.Module:
    """Build the network with random weights; timm's initialisation uses the caller's random stream."""
    from timm.models.resnet import BasicBlock, ResNet

    channels = tuple(options.width * factor for factor in (1, 2, 4, 8))
    return cast(
        nn.Module,
        ResNet(
            BasicBlock,
            (2, 2, 2, 2),
            num_classes=1,
            in_chans=CHANNELS[colour],
            channels=channels,
            stem_width=options.width,
        ),
    )


def pooled_features(net: nn.Module, images: Tensor) -> Tensor:
    """Return the input of the last layer: the pooled features shown in the papers' t-SNE figures."""
    forward, head = net.forward_features, net.forward_head
    return cast(Tensor, head(forward(images), pre_logits=True))  # type: ignore[operator]
