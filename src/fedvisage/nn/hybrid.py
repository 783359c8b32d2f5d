"""The convolutional tokenizer of ViT-H: a ResNet-50 without its last stage, as in timm's ``vit_base_r50_s16_224``.

A. Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, §3.1 and appendix B.2.1. The stem and the first stage's
pooling halve the image twice, the second and third stage once each: a 224-pixel image becomes 14 × 14 positions of
1,024 channels, and a 1 × 1 convolution makes them 196 tokens. Convolutions have standardised weights and "same"
padding, and groups are normalised instead of batches: nothing in the tokenizer depends on the other images of a batch.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from torch import nn

Stages = tuple[int, int, int]


def truncated_resnet(stem: int, stages: Stages, channels: int) -> nn.Module:
    """Build the three stages with their numbers of blocks; a stem of 64 makes the widths of a ResNet-50."""
    from timm.layers import GroupNormAct, StdConv2dSame
    from timm.models.resnetv2 import ResNetV2

    backbone = ResNetV2(
        layers=stages,
        channels=tuple(stem * factor for factor in (4, 8, 16)),
        stem_chs=stem,
        num_classes=0,
        global_pool="",
        in_chans=channels,
        preact=False,
        stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=1e-8),
        norm_layer=partial(GroupNormAct, num_groups=stem // 2),
    )
    return cast(nn.Module, backbone)
