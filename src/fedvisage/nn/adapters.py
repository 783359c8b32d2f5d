"""Trained additions to frozen networks: LoRA and BitFit for transformers, LoRA for convolutions of face networks.

E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: (alpha / rank)·B A x is added to a
frozen linear layer's W x. A starts random and B at zero, so training starts at the pre-trained network. E. Ben Zaken et
al., "BitFit", ACL 2022, trains biases only; here a shift, initially zero, is added to the output of layers with a bias.

The frozen network is not registered with torch, so it is part of no state that is sent, averaged, clipped or stored in
a checkpoint. Queries, keys and values that timm computes in one linear layer share one A of the given rank. The frozen
network stays in evaluation mode, so its statistics do not change either.

In face networks, (alpha / rank)·B (A * x) is added to a frozen convolution W * x. A is a random convolution to rank
channels with the layer's own kernel, stride and padding; B is 1×1 and initially zero. Their product is one convolution
of the layer's shape, so the trained weights can be merged into the frozen ones. BatchNorm keeps the statistics and
scales that came with the weights. In an iResNet, adapters apply to the convolutions of the selected stages and, unless
``linear: false`` is set, to the fully connected layer after them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.nn.compute import has_gradient_overrun
from fedvisage.nn.timm_network import PLACE, NormalisedNetwork, TimmNetwork, timm_network
from fedvisage.recipe import Input, Section

Where = Literal["attention", "mlp"]

PATHS: Mapping[Where, tuple[str, ...]] = {"attention": ("attn", "self_attn"), "mlp": ("mlp",)}
"""timm's names of the two halves of a block."""

BLOCK = re.compile(r"blocks\.(\d+)\.")
MARK = ":"
"""Replaces the dots of a layer name, which keys of a module dictionary must not contain."""

FROZEN = "frozen."
"""Prefix of the frozen network's tensors in a finished model."""


class AdaptedNetwork(TimmNetwork):
    """A frozen timm transformer with adapters; ``rank: 0`` trains only the head, or with ``biases`` also BitFit."""

    rank: int = Field(8, ge=0, le=256)
    """Rank of the addition to each linear layer; 0 adds nothing."""
    alpha: float = Field(16.0, gt=0)
    """The addition is scaled by alpha / rank."""
    on: tuple[Where, ...] = Field(("attention", "mlp"), min_length=1)
    """Halves of a block with adapters."""
    blocks: tuple[int, ...] | Literal["all"] = "all"
    """Numbers of the blocks with adapters, from 0."""
    biases: bool = False
    """Train biases as well."""


class LowRank(nn.Module):
    """Addition to the output of a linear layer: scale · B A x."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        """Initialise A as LoRA's authors do and B with zeros."""
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def add_to_output(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to the output of the layer (a forward hook)."""
        return output + self.scale * linear(linear(inputs[0], self.a), self.b)

    def merge(self, layer: nn.Module) -> None:
        """Add the product to the weights of the layer."""
        assert isinstance(layer, nn.Linear)
        layer.weight.add_(self.scale * (self.b @ self.a))


class Shift(nn.Module):
    """Addition to the bias of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        """Start at zero."""
        super().__init__()
        self.value = nn.Parameter(torch.zeros_like(cast(Tensor, layer.bias)))

    def add_to_output(self, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to the output of the layer (a forward hook)."""
        return output + self.value

    def merge(self, layer: nn.Module) -> None:
        """Add the shift to the bias of the layer."""
        cast(Tensor, layer.bias).add_(self.value)


class FaceBackbone(nn.Module):
    """A network of this package to freeze: it takes images without normalisation and returns `width` outputs."""

    def __init__(self, network: nn.Module, width: int) -> None:
        """Store the network."""
        super().__init__()
        self.network, self.width = network, width

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of the network."""
        outputs: Tensor = self.network(images)
        return outputs


class FrozenNetwork(nn.Module):
    """A frozen network with trained additions; its state contains only these."""

    def __init__(
        self,
        whole: NormalisedNetwork | FaceBackbone,
        low_rank: Mapping[str, nn.Module],
        shifts: Mapping[str, nn.Module],
    ) -> None:
        """Freeze the network and attach each addition to the layer of its name."""
        super().__init__()
        self._frozen = (whole.eval().requires_grad_(False),)
        self.low_rank, self.shifts = (
            nn.ModuleDict({_key(name): piece for name, piece in pieces.items()}) for pieces in (low_rank, shifts)
        )
        for name, piece in self._pieces():
            layer = whole.network.get_submodule(name)
            # A bound method, so that a copy of this module is hooked to its own pieces.
            layer.register_forward_hook(cast(Callable[..., Tensor], piece.add_to_output))

    @property
    def frozen(self) -> NormalisedNetwork | FaceBackbone:
        """The frozen network."""
        return self._frozen[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return features of images."""
        features: Tensor = self.frozen(images)
        return features

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the frozen network's tensors under their names in a finished model."""
        return {f"{FROZEN}{name}": value for name, value in self.frozen.network.state_dict().items()}

    def fold_adapters(self) -> NormalisedNetwork | FaceBackbone:
        """Return an equivalent plain network, with the additions merged into its weights."""
        merged_copy = deepcopy(self)
        for layer in merged_copy.frozen.modules():
            layer._forward_hooks.clear()
        with torch.no_grad():
            for name, piece in merged_copy._pieces():
                cast(Any, piece).merge(merged_copy.frozen.network.get_submodule(name))
        return merged_copy.frozen

    def _pieces(self) -> Iterator[tuple[str, Any]]:
        for pieces in (self.low_rank, self.shifts):
            for key, piece in pieces.items():
                yield key.replace(MARK, "."), piece

    def _apply(self, change: Callable[[Tensor], Tensor], recurse: bool = True) -> FrozenNetwork:
        """Move or convert the frozen network together with the additions."""
        self.frozen._apply(change, recurse)  # type: ignore[no-untyped-call]
        super()._apply(change, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the frozen network's tensors as well, if a finished model contains them."""
        full_prefix = f"{prefix}{FROZEN}"
        frozen_tensors = {
            name: state_dict.pop(name) for name in [name for name in state_dict if name.startswith(full_prefix)]
        }
        if frozen_tensors:
            self.frozen.network.load_state_dict(
                {name.removeprefix(full_prefix): value for name, value in frozen_tensors.items()}
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)


def adapted_network(settings: AdaptedNetwork, image: Input, outputs: int = 0) -> FrozenNetwork:
    """Build a frozen network with random weights, and its additions; 0 outputs omit its last layer."""
    backbone = timm_network(settings, image, outputs)
    # Make attention call its layer for queries, keys and values, where it would use only the layer's weights.
    for layer in backbone.modules():
        if getattr(layer, "q_bias", None) is not None and hasattr(layer, "qkv_bias_separate"):
            cast(Any, layer).qkv_bias_separate = True
    low_rank, shifts = dict[str, nn.Module](), dict[str, nn.Module]()
    for name, layer in _adapted_layers(backbone.network, settings, nn.Linear) if settings.rank else ():
        low_rank[name] = LowRank(cast(nn.Linear, layer), settings.rank, settings.alpha)
    for name, layer in _adapted_layers(backbone.network, settings, nn.Module) if settings.biases else ():
        if isinstance(getattr(layer, "bias", None), nn.Parameter):
            shifts[name] = Shift(layer)
    return FrozenNetwork(backbone, low_rank, shifts)


def _key(name: str) -> str:
    """Return a layer's name as a key of a module dictionary."""
    return name.replace(".", MARK)


def _adapted_layers(
    network: nn.Module, settings: AdaptedNetwork, kind: type[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of the selected blocks: linear layers of the selected halves, or all layers for shifts."""
    attends = re.compile(rf"blocks\.(\d+)\.({'|'.join(PATHS['attention'])})(\.|$)")
    numbers = sorted({int(match[1]) for name, _ in network.named_modules() if (match := attends.match(name))})
    if not numbers:
        raise UserError(f"{PLACE}.arch", f"{settings.arch} has no transformer blocks; adapters require them")
    selected = numbers if settings.blocks == "all" else list(settings.blocks)
    if missing := sorted(set(selected) - set(numbers)):
        raise UserError(f"{PLACE}.blocks", f"{settings.arch} has no block {missing[0]}, its last is {numbers[-1]}")
    halves = {path for half in settings.on for path in PATHS[half]}
    for name, layer in network.named_modules():
        match = BLOCK.match(name)
        if match is None or int(match[1]) not in selected or not isinstance(layer, kind) or list(layer.children()):
            continue
        if kind is nn.Module or halves & set(name.split(".")):
            yield name, layer


# Low-rank adapters in the convolutions of a frozen face network.


PREFIX = "model."
"""Prefix of the backbone's tensors in a converted file and in a finished model."""
FEW = 3


class FaceAdapters(Section):
    """The adapted layers of an iResNet and the rank of their adapters."""

    rank: int = Field(8, ge=1, le=256)
    """Rank of the addition to each layer."""
    alpha: float = Field(16.0, gt=0)
    """The addition is scaled by alpha / rank."""
    stages: tuple[int, ...] = (4,)
    """Stages, from 1 to 4, whose convolutions have adapters."""
    linear: bool = True
    """Adapt the fully connected layer after the stages as well."""

    @model_validator(mode="after")
    def _something_learns(self) -> FaceAdapters:
        if not {*self.stages} <= {1, 2, 3, 4}:
            raise ValueError("stages must be numbers from 1 to 4")
        if not self.stages and not self.linear:
            raise ValueError("set stages, or leave linear: true; with neither, nothing would be trained")
        return self


class LowRankConvolution(nn.Module):
    """Addition to the output of a convolution: scale · B (A * x)."""

    def __init__(self, layer: nn.Conv2d, rank: int, alpha: float) -> None:
        """Initialise A as LoRA's authors do and B with zeros."""
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, *layer.weight.shape[1:]))
        self.b = nn.Parameter(torch.zeros(layer.out_channels, rank))
        self.stride, self.padding = layer.stride, layer.padding
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def add_to_output(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to the output of the layer (a forward hook)."""
        images: Tensor = inputs[0]
        a: Tensor = self.a
        if has_gradient_overrun(a, self.stride):
            images, a = images.contiguous(), a.to(memory_format=torch.contiguous_format)
        within = conv2d(images, a, stride=self.stride, padding=self.padding)
        return output + self.scale * conv2d(within, self.b[:, :, None, None])

    def merge(self, layer: nn.Module) -> None:
        """Add the product to the weights of the layer."""
        assert isinstance(layer, nn.Conv2d)
        layer.weight.add_(self.scale * torch.einsum("or,rikl->oikl", self.b, self.a))


def with_adapters(network: nn.Sequential, settings: FaceAdapters, embedding: int) -> FrozenNetwork:
    """Freeze an iResNet and attach the adapters."""
    pieces: dict[str, nn.Module] = {}
    stages = {f"stage{number}" for number in settings.stages}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d) and name.split(".")[0] in stages:
            pieces[name] = LowRankConvolution(layer, settings.rank, settings.alpha)
        elif isinstance(layer, nn.Linear) and name == "linear" and settings.linear:
            pieces[name] = LowRank(layer, settings.rank, settings.alpha)
    return FrozenNetwork(FaceBackbone(network, embedding), pieces, {})


def load_frozen(body: FaceBackbone, path: Path) -> None:
    """Load weights into the frozen network from a converted file or from the model of a finished run."""
    weights, _ = read_tensors(path)
    state = body.network.state_dict()
    tensors = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
    wrong = [name for name, value in state.items() if name not in tensors or tensors[name].shape != value.shape]
    if wrong:
        suffix = f" and {len(wrong) - FEW} more" if len(wrong) > FEW else ""
        raise UserError(
            f"{PLACE}.weights",
            f"{path} is missing {', '.join(wrong[:FEW])}{suffix}, or differs in shape; it is for another network",
        )
    body.network.load_state_dict({name: tensors[name] for name in state})
