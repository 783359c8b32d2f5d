"""ResNet-18 for presentation attack detection: FedPAD's network (§IV-A4), six input channels, one live logit."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, cast

from pydantic import Field
from torch import Tensor, nn

from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.norms import Norm, replace_batchnorm
from fedvisage.recipe import Section


class ResNet18(Section):
    """The width of the first stage, 64 as in the paper, and the normalisation; narrower networks are for CPUs."""

    unset: ClassVar[frozenset[str]] = frozenset({"norm"})
    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 as in the papers, less for CPUs."""
    norm: Norm | None = None
    """``batch`` by default. ``group``: GroupNorm. ``weight-standardised``: no normalisation, standardised convolutions
    (FedWon). Both do without statistics of the sites' images."""

    @property
    def without_batchnorm(self) -> str:
        """Return the key and its value if the network has no BatchNorm, else nothing."""
        return "" if self.norm in (None, "batch") else f"network.norm: {self.norm}"


def resnet18(options: ResNet18, colour: str) -> nn.Module:
    """Build the network with random weights; timm's initialisation uses the caller's random stream."""
    from timm.models.resnet import BasicBlock, ResNet

    channels = tuple(options.width * factor for factor in (1, 2, 4, 8))
    net = ResNet(
        BasicBlock,
        (2, 2, 2, 2),
        num_classes=1,
        in_chans=CHANNELS[colour],
        channels=channels,
        stem_width=options.width,
    )
    return replace_batchnorm(net, options.norm or "batch")


def pooled_features(net: nn.Module, images: Tensor, change: Callable[[str, Tensor], Tensor] | None = None) -> Tensor:
    """Return the input of the last layer: the pooled features shown in the papers' t-SNE figures.

    ``change`` maps the name of a stage and its maps to the maps that the next stage receives.
    """
    head = net.forward_head
    if change is None:
        return cast(Tensor, head(net.forward_features(images), pre_logits=True))  # type: ignore[operator]
    values = images
    for name in ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3", "layer4"):
        values = change(name, net.get_submodule(name)(values))
    return cast(Tensor, head(values, pre_logits=True))  # type: ignore[operator]
