"""timm's vision transformers split into named parts and their weights, FedSIS's adapter, and pieces of face networks.

ViT is timm's ``vit_base_patch16_224``, ViT-H its ``vit_base_r50_s16_224`` (FedSIS, §4.2); narrower ones are for CPU
recipes. The parts are tokenizer, blocks, norm and head. Composed, they compute exactly the same as timm's own forward,
bit for bit. Position embedding and class token belong to the tokenizer (§3.1). Parts keep timm's internal names, so
that timm's weights fit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import Section

# Pieces shared by the face recognition networks: pixel normalisation, image sizes, and options.


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel, for RGB from 0 to 1."""

REDUCTION = 16
"""Each network halves an image four times; the papers' 112 pixels become 7."""


class Backbone(Section):
    """The width of the first stage, of which the others are multiples, and the length of a feature.

    The defaults are the papers'; narrower networks are for CPU recipes.
    """

    width: int = Field(64, ge=8, le=64, multiple_of=8)
    """Channels of the first stage; 64 as in the papers, less for CPUs."""
    embedding: int = Field(512, ge=8)
    """Dimension of a feature."""


class CentrePixels(nn.Module):
    """Map pixels from [0, 1] to [−1, 1], as the papers do for 8-bit pixels with (x − 127.5) / 127.5."""

    def forward(self, images: Tensor) -> Tensor:
        """Shift and scale."""
        return images * 2 - 1


class NormalisePixels(nn.Module):
    """Normalise pixels in [0, 1] by ImageNet's mean and standard deviation per channel, as photograph networks do."""

    def __init__(self) -> None:
        """Register both as buffers that are not part of the state."""
        super().__init__()
        self.mean, self.std = (
            nn.Buffer(torch.tensor(values)[:, None, None], persistent=False) for values in (IMAGENET_MEAN, IMAGENET_STD)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Shift and scale."""
        normalised: Tensor = (images - self.mean) / self.std
        return normalised


def last_side(size: int) -> int:
    """Return the side of the last map; raise a UserError for sizes that cannot be halved four times."""
    if size < REDUCTION or size % REDUCTION:
        raise UserError(
            "recipe.input.size", f"input sizes of these networks must be multiples of {REDUCTION}, got {size}; use 112"
        )
    return size // REDUCTION


Stages = tuple[int, int, int]


def truncated_resnet(stem: int, stages: Stages, channels: int) -> nn.Module:
    """Build the convolutional tokenizer of ViT-H: a ResNet-50 without its last stage, as in ``vit_base_r50_s16_224``.

    A. Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, §3.1 and appendix B.2.1. The stem and the first
    stage's pooling halve the image twice, the second and third stage once each: a 224-pixel image becomes 14 × 14
    positions with 1,024 channels, which a 1 × 1 convolution converts to 196 tokens. Convolutions have standardised
    weights and "same" padding. Group norms replace batch norms, so no part of the tokenizer depends on the other images
    of a batch. ``stages`` holds the numbers of blocks; a stem of 64 gives the widths of a ResNet-50.
    """
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


PATCH = 16
"""Side, in pixels, of the image region of one token in both networks."""

CLASSES = 2


class Transformer(Section):
    """ViT-B/16 as in the paper; ``weights`` is ``none``, or a safetensors file of timm with initial weights."""

    width: int = Field(768, ge=8)
    """Dimension of a token."""
    depth: int = Field(12, ge=1)
    """Number of blocks."""
    heads: int = Field(12, ge=1)
    """Number of heads per block."""
    weights: str = "none"
    """timm's ``model.safetensors`` of ``vit_base_patch16_224`` or ``vit_base_r50_s16_224`` with initial weights;
    nothing is downloaded. Needs ``input.colour: rgb``."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Transformer:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        return self


class HybridTransformer(Transformer):
    """ViT-H: the tokenizer is a truncated ResNet-50; the widths of its stages are multiples of ``stem``."""

    stem: int = Field(64, ge=8, multiple_of=8)
    """Channels of the tokenizer's stem."""
    stages: Stages = (3, 4, 9)
    """Number of blocks in each of its stages."""


class Tokenizer(nn.Module):
    """Converts images in [0, 1] to tokens with position embeddings, after a class token if the network has one."""

    def __init__(self, patch_embed: nn.Module, pos_embed: nn.Parameter, cls_token: nn.Parameter | None) -> None:
        """Store these parts of a transformer."""
        super().__init__()
        self.patch_embed, self.pos_embed, self.cls_token = patch_embed, pos_embed, cls_token

    def forward(self, images: Tensor) -> Tensor:
        """Return batch × tokens × width; timm's weights expect pixels from -1 to 1."""
        tokens: Tensor = self.patch_embed(images * 2 - 1)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        return tokens + self.pos_embed


class Adapter(nn.Module):
    """Maps patch tokens of any block to a pseudo-class token (FedSIS, §4.2): two convolutions, then the average.

    The convolutions have no bias, because the following BatchNorm would cancel it. A ``residual`` adapter, as in the
    authors' code, adds the tokens to the output of its second BatchNorm, before the last ReLU.
    """

    def __init__(self, width: int, *, residual: bool = False) -> None:
        """Build two convolutions of the same width."""
        super().__init__()
        self.residual = residual
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Arrange the tokens in the square of their image positions, and apply the layers."""
        side = round(tokens.shape[1] ** 0.5)
        square = tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)
        if self.residual:
            return (square + cast(Tensor, self.layers[:-1](square))).relu().mean(dim=(2, 3))
        return cast(Tensor, self.layers(square)).mean(dim=(2, 3))


def transformer_parts(
    options: Transformer, colour: str, size: int, *, class_token: bool, depth: int | None = None
) -> nn.ModuleDict:
    """Build a transformer with random weights and return its parts; ``depth`` omits the last blocks."""
    from timm.models.vision_transformer import VisionTransformer

    channels = CHANNELS[colour]
    transformer: Any = VisionTransformer(
        img_size=size,
        in_chans=channels,
        num_classes=CLASSES,
        class_token=class_token,
        global_pool="token" if class_token else "",
        embed_dim=options.width,
        depth=depth or options.depth,
        num_heads=options.heads,
        **_embedding(options, channels),
    )
    return nn.ModuleDict(
        {
            "tokenizer": Tokenizer(transformer.patch_embed, transformer.pos_embed, transformer.cls_token),
            "blocks": transformer.blocks,
            "norm": transformer.norm,
            "head": transformer.head,
        }
    )


def _embedding(options: Transformer, channels: int) -> dict[str, Any]:
    """Return timm's arguments for the tokenizer: patches of pixels, or of a ResNet's last map."""
    if not isinstance(options, HybridTransformer):
        return {"patch_size": PATCH}
    from timm.layers import HybridEmbed

    backbone = truncated_resnet(options.stem, options.stages, channels)
    return {"patch_size": 1, "embed_layer": partial(HybridEmbed, backbone=backbone)}


def normed_head(width: int) -> nn.Module:
    """Return the head of the authors' code: LayerNorm before the linear layer."""
    return nn.Sequential(nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES))


def class_token(net: nn.ModuleDict, tokens: Tensor) -> Tensor:
    """Return the class token after the last block: z = F(s) of §3.1."""
    return cast(Tensor, net["norm"](net["blocks"](tokens)))[:, 0]


def live_logit(two: Tensor) -> Tensor:
    """Return the logit of the live class in the softmax: the difference of the two outputs."""
    return two[..., 1] - two[..., 0]


def token_count(size: int, *, class_token: bool) -> int:
    """Return the number of tokens of an image."""
    return (size // PATCH) ** 2 + class_token


PLACE = "recipe.method.network.weights"
LEFT_OUT = ("head", "pre_logits", "fc_norm")


def load_pretrained(net: nn.ModuleDict, path: Path) -> None:
    """Load a file's weights into tokenizer, blocks and norm; adapter and head keep their weights.

    The files are timm's own ``model.safetensors`` of ``vit_base_patch16_224`` and ``vit_base_r50_s16_224``; nothing is
    ever downloaded. Their heads, which are for other classes, are not loaded, nor are blocks beyond the network's
    depth. Position embeddings for another image size are interpolated, and a network without class token skips that
    token and its position.
    """
    from timm.layers import resample_abs_pos_embed

    if not path.is_file():
        raise UserError(PLACE, f"{path} does not exist; give a safetensors file from timm, or none")
    weights, _ = read_tensors(path)
    if "pos_embed" not in weights or weights["pos_embed"].dim() != 3:
        raise UserError(PLACE, "the file has no position embeddings (pos_embed); it is not from a vision transformer")
    tokenizer = net["tokenizer"]
    assert isinstance(tokenizer, Tokenizer)
    # Give the tokenizer one position embedding per token.
    positions = weights["pos_embed"]
    if tokenizer.cls_token is None:
        weights.pop("cls_token", None)
        positions = positions[:, 1:]
    prefix_tokens, count = int(tokenizer.cls_token is not None), tokenizer.pos_embed.shape[1]
    if positions.shape[1] != count:
        side = round((count - prefix_tokens) ** 0.5)
        positions = resample_abs_pos_embed(positions, new_size=[side, side], num_prefix_tokens=prefix_tokens)
    weights["pos_embed"] = positions
    for part in ("blocks", "norm"):
        if part in net:
            of_part = {key: value for key, value in weights.items() if key.startswith(f"{part}.")}
            _load(net[part], of_part, f"{part}.", path)
    rest = {key: value for key, value in weights.items() if key.split(".")[0] not in ("blocks", "norm", *LEFT_OUT)}
    _load(tokenizer, rest, "", path)


def _load(part: nn.Module, weights: dict[str, Tensor], prefix: str, path: Path) -> None:
    """Load all tensors of a part; errors name a tensor that is missing or has another shape."""
    state = part.state_dict()
    tensors = {key.removeprefix(prefix): value for key, value in weights.items()}
    for key, value in state.items():
        if key not in tensors:
            raise UserError(PLACE, f"{path} has no {prefix}{key}; it belongs to a different network")
        if tensors[key].shape != value.shape:
            shapes = f"{tuple(tensors[key].shape)}, but the network expects {tuple(value.shape)}"
            raise UserError(PLACE, f"{path}: {prefix}{key} has shape {shapes}")
    part.load_state_dict({key: tensors[key] for key in state})
