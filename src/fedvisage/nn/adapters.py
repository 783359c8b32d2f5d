"""Small trained pieces in a frozen network: low-rank adapters (LoRA) and shifted biases (BitFit); of transformers.

E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: to a frozen linear layer's W x comes
(alpha / rank)·B A x, with A drawn and B zero at first, so that training begins at the pre-trained network. E. Ben Zaken
et al., "BitFit", ACL 2022: biases alone are trained; here a shift, zero at first, is added to what has a bias.

The frozen network is out of torch's sight: it is in no state that is sent, averaged, clipped or kept in a checkpoint.
Queries, keys and values that timm computes by one linear layer share one A of the given rank. The frozen network stays
in evaluation mode, so its statistics do not move either.
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
from fedvisage.nn.compute import overruns
from fedvisage.nn.timm_network import PLACE, TimmNetwork, Whole, timm_network
from fedvisage.recipe import Input, Section

Where = Literal["attention", "mlp"]

PATHS: Mapping[Where, tuple[str, ...]] = {"attention": ("attn", "self_attn"), "mlp": ("mlp",)}
"""How timm calls the two halves of a block."""

BLOCK = re.compile(r"blocks\.(\d+)\.")
MARK = ":"
"""Stands for a dot in the name of a layer, which a module dictionary's key cannot have."""

FROZEN = "frozen."
"""What stands before the frozen network's tensors where a finished model holds them."""


class AdaptedNetwork(TimmNetwork):
    """A transformer of timm's, frozen, with adapters; ``rank: 0`` trains the head alone, or with ``biases`` BitFit."""

    rank: int = Field(8, ge=0, le=256)
    """The rank of what is added to each linear layer; 0 adds nothing."""
    alpha: float = Field(16.0, gt=0)
    """What is added counts alpha / rank."""
    on: tuple[Where, ...] = Field(("attention", "mlp"), min_length=1)
    """In which halves of a block."""
    blocks: tuple[int, ...] | Literal["all"] = "all"
    """In which blocks, counted from 0."""
    biases: bool = False
    """Whether biases learn, too."""


class LowRank(nn.Module):
    """What is added to a linear layer's output: scale · B A x."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        """A is drawn as LoRA's authors draw it, B is zero."""
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def beside(self, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to what the layer computed."""
        return output + self.scale * linear(linear(given[0], self.a), self.b)

    def merge(self, layer: nn.Module) -> None:
        """Put the sum into the layer's own weights."""
        assert isinstance(layer, nn.Linear)
        layer.weight.add_(self.scale * (self.b @ self.a))


class Shift(nn.Module):
    """What is added to the bias of a layer."""

    def __init__(self, layer: nn.Module) -> None:
        """Begin at zero."""
        super().__init__()
        self.value = nn.Parameter(torch.zeros_like(cast(Tensor, layer.bias)))

    def beside(self, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to what the layer computed."""
        return output + self.value

    def merge(self, layer: nn.Module) -> None:
        """Put the sum into the layer's own bias."""
        cast(Tensor, layer.bias).add_(self.value)


class Bare(nn.Module):
    """A network of our own that is to be frozen: it takes pictures as they are, and gives so many numbers."""

    def __init__(self, network: nn.Module, width: int) -> None:
        """Take the network."""
        super().__init__()
        self.network, self.width = network, width

    def forward(self, images: Tensor) -> Tensor:
        """Return its outputs."""
        outputs: Tensor = self.network(images)
        return outputs


class Adapted(nn.Module):
    """A frozen network's features of images, with trained pieces in it; only these are its state."""

    def __init__(self, whole: Whole | Bare, low_rank: Mapping[str, nn.Module], shifts: Mapping[str, nn.Module]) -> None:
        """Freeze the network and place the pieces, each beside the layer of its name."""
        super().__init__()
        self._frozen = (whole.eval().requires_grad_(False),)
        self.low_rank, self.shifts = (
            nn.ModuleDict({_key(name): piece for name, piece in pieces.items()}) for pieces in (low_rank, shifts)
        )
        for name, piece in self._pieces():
            layer = whole.network.get_submodule(name)
            # A bound method, so that a copy of this module is hooked to its own pieces.
            layer.register_forward_hook(cast(Callable[..., Tensor], piece.beside))

    @property
    def frozen(self) -> Whole | Bare:
        """The network that does not change."""
        return self._frozen[0]

    def forward(self, images: Tensor) -> Tensor:
        """Return features."""
        features: Tensor = self.frozen(images)
        return features

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the frozen network's tensors, as a finished model holds them beside the pieces."""
        return {f"{FROZEN}{name}": value for name, value in self.frozen.network.state_dict().items()}

    def merged(self) -> Whole | Bare:
        """Return a plain network that computes the same: the pieces are in its weights."""
        alone = deepcopy(self)
        for layer in alone.frozen.modules():
            layer._forward_hooks.clear()
        with torch.no_grad():
            for name, piece in alone._pieces():
                cast(Any, piece).merge(alone.frozen.network.get_submodule(name))
        return alone.frozen

    def _pieces(self) -> Iterator[tuple[str, Any]]:
        for pieces in (self.low_rank, self.shifts):
            for key, piece in pieces.items():
                yield key.replace(MARK, "."), piece

    def _apply(self, change: Callable[[Tensor], Tensor], recurse: bool = True) -> Adapted:
        """Move, or lay out, the frozen network with the pieces."""
        self.frozen._apply(change, recurse)  # type: ignore[no-untyped-call]
        super()._apply(change, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the frozen network's tensors, too, where a finished model comes with them."""
        before = f"{prefix}{FROZEN}"
        own = {name: state_dict.pop(name) for name in [name for name in state_dict if name.startswith(before)]}
        if own:
            self.frozen.network.load_state_dict({name.removeprefix(before): value for name, value in own.items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)


def adapted(settings: AdaptedNetwork, image: Input) -> Adapted:
    """Build a frozen network with random weights, and pieces in it."""
    whole = timm_network(settings, image, outputs=0)
    _open_fused(whole)
    low_rank, shifts = dict[str, nn.Module](), dict[str, nn.Module]()
    for name, layer in _adapted_layers(whole.network, settings, nn.Linear) if settings.rank else ():
        low_rank[name] = LowRank(cast(nn.Linear, layer), settings.rank, settings.alpha)
    for name, layer in _adapted_layers(whole.network, settings, nn.Module) if settings.biases else ():
        if isinstance(getattr(layer, "bias", None), nn.Parameter):
            shifts[name] = Shift(layer)
    return Adapted(whole, low_rank, shifts)


def _key(name: str) -> str:
    """Return a layer's name as a key of a module dictionary."""
    return name.replace(".", MARK)


def _adapted_layers(
    network: nn.Module, settings: AdaptedNetwork, kind: type[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of the blocks that the settings name: linear ones of their halves, or all that have a bias."""
    attends = re.compile(rf"blocks\.(\d+)\.({'|'.join(PATHS['attention'])})(\.|$)")
    numbers = sorted({int(found[1]) for name, _ in network.named_modules() if (found := attends.match(name))})
    if not numbers:
        raise UserError(
            f"{PLACE}.arch", f"{settings.arch} has no blocks of a transformer; adapters are for those that do"
        )
    chosen = numbers if settings.blocks == "all" else list(settings.blocks)
    if strange := sorted(set(chosen) - set(numbers)):
        raise UserError(f"{PLACE}.blocks", f"{settings.arch} has no block {strange[0]}, its last is {numbers[-1]}")
    halves = {path for where in settings.on for path in PATHS[where]}
    for name, layer in network.named_modules():
        found = BLOCK.match(name)
        if found is None or int(found[1]) not in chosen or not isinstance(layer, kind) or list(layer.children()):
            continue
        if kind is nn.Module or halves & set(name.split(".")):
            yield name, layer


def _open_fused(whole: Whole) -> None:
    """Have attention compute queries, keys and values by its layer, where it would only take the layer's weights."""
    for layer in whole.modules():
        if getattr(layer, "q_bias", None) is not None and hasattr(layer, "qkv_bias_separate"):
            cast(Any, layer).qkv_bias_separate = True


# Low-rank adapters in the convolutions of a frozen face network (LoRA, as nn/adapters.py has it for transformers).
#
# To a frozen convolution W * x comes (alpha / rank)·B (A * x): A is a convolution to rank channels with the layer's
# own
# kernel, stride and padding, drawn; B is 1×1, zero at first. Their product is one convolution of the layer's shape,
# so
# that what was trained can be put into the weights for good. BatchNorm keeps the statistics and scales that came
# with
# the weights. Of an iResNet the convolutions of the named stages are adapted and, unless ``linear: false`` says
# otherwise, the fully connected layer behind them.


PART = "model."
"""What stands before the backbone's tensors in a converted file and in a finished model."""
FEW = 3


class FaceAdapters(Section):
    """Which layers of an iResNet learn, and how much of them."""

    rank: int = Field(8, ge=1, le=256)
    """The rank of what is added to each layer."""
    alpha: float = Field(16.0, gt=0)
    """What is added counts alpha / rank."""
    stages: tuple[int, ...] = (4,)
    """In the convolutions of which of the four stages."""
    linear: bool = True
    """Whether the fully connected layer behind the stages learns, too."""

    @model_validator(mode="after")
    def _something_learns(self) -> FaceAdapters:
        if not {*self.stages} <= {1, 2, 3, 4}:
            raise ValueError("stages counts the four stages from 1 to 4")
        if not self.stages and not self.linear:
            raise ValueError("name stages, or leave linear true: without either nothing would learn")
        return self


class LowRankConvolution(nn.Module):
    """What is added to a convolution's output: scale · B (A * x)."""

    def __init__(self, layer: nn.Conv2d, rank: int, alpha: float) -> None:
        """A is drawn as LoRA's authors draw it, B is zero."""
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, *layer.weight.shape[1:]))
        self.b = nn.Parameter(torch.zeros(layer.out_channels, rank))
        self.stride, self.padding = layer.stride, layer.padding
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def beside(self, _: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Add to what the layer computed."""
        images: Tensor = given[0]
        a: Tensor = self.a
        if overruns(a, self.stride):
            images, a = images.contiguous(), a.to(memory_format=torch.contiguous_format)
        within = conv2d(images, a, stride=self.stride, padding=self.padding)
        return output + self.scale * conv2d(within, self.b[:, :, None, None])

    def merge(self, layer: nn.Module) -> None:
        """Put the sum into the layer's own weights."""
        assert isinstance(layer, nn.Conv2d)
        layer.weight.add_(self.scale * torch.einsum("or,rikl->oikl", self.b, self.a))


def with_adapters(network: nn.Sequential, settings: FaceAdapters, embedding: int) -> Adapted:
    """Freeze an iResNet, and place the pieces."""
    pieces: dict[str, nn.Module] = {}
    for name, layer in _learning_layers(network, settings):
        if isinstance(layer, nn.Conv2d):
            pieces[name] = LowRankConvolution(layer, settings.rank, settings.alpha)
        elif isinstance(layer, nn.Linear):
            pieces[name] = LowRank(layer, settings.rank, settings.alpha)
    return Adapted(Bare(network, embedding), pieces, {})


def load_frozen(body: Bare, path: Path) -> None:
    """Put a file's weights into the frozen network: a converted file, or the model of a finished run."""
    weights, _ = read_tensors(path)
    state = body.network.state_dict()
    given = {name.removeprefix(PART): value for name, value in weights.items() if name.startswith(PART)}
    wrong = [name for name, value in state.items() if name not in given or given[name].shape != value.shape]
    if wrong:
        more = f" and {len(wrong) - FEW} more" if len(wrong) > FEW else ""
        raise UserError(
            f"{PLACE}.weights",
            f"{path} lacks {', '.join(wrong[:FEW])}{more}, or has it in another shape; it is of another network",
        )
    body.network.load_state_dict({name: given[name] for name in state})


def _learning_layers(network: nn.Module, settings: FaceAdapters) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that learn, in the order in which the network has them."""
    stages = {f"stage{number}" for number in settings.stages}
    for name, layer in network.named_modules():
        if (isinstance(layer, nn.Conv2d) and name.split(".")[0] in stages) or (name == "linear" and settings.linear):
            yield name, layer
