"""Low-rank adapters in the convolutions of a frozen face network (LoRA, as nn/adapters.py has it for transformers).

To a frozen convolution W * x comes (alpha / rank)·B (A * x): A is a convolution to rank channels with the layer's own
kernel, stride and padding, drawn; B is 1×1, zero at first. Their product is one convolution of the layer's shape, so
that what was trained can be put into the weights for good. BatchNorm keeps the statistics and scales that came with
the weights. Of an iResNet the convolutions of the named stages are adapted and, unless ``linear: false`` says
otherwise, the fully connected layer behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import conv2d

from fedvisage.errors import UserError
from fedvisage.files import read_tensors
from fedvisage.nn.adapters import Adapted, Bare, LowRank
from fedvisage.nn.precision import overruns
from fedvisage.nn.timm_network import PLACE
from fedvisage.recipe import Section

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
    for name, layer in _layers(network, settings):
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


def _layers(network: nn.Module, settings: FaceAdapters) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that learn, in the order in which the network has them."""
    stages = {f"stage{number}" for number in settings.stages}
    for name, layer in network.named_modules():
        if (isinstance(layer, nn.Conv2d) and name.split(".")[0] in stages) or (name == "linear" and settings.linear):
            yield name, layer
