"""A project's layout: which of its layers is which of ours, in the order in which it computes them.

A table has a row a layer. Names of tensors follow from the layer, and so do the few things in which two projects write
the same layer: a linear layer for a convolution of one pixel, a bias before BatchNorm, BatchNorm without a scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedvisage.base.errors import UserError
from fedvisage.nn.face_networks import BOTTLENECKS, IRESNET_BLOCKS
from fedvisage.nn.vit import IMAGENET_MEAN, IMAGENET_STD
from fedvisage.starts.files import Layer

Colour = Literal["rgb", "bgr"]

ANY = "*"
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Row:
    """One layer: its name there, or none where they compute nothing, and its name here."""

    source: str | None
    target: str


@dataclass(frozen=True)
class Layout:
    """How a project names its layers, and how it takes pictures."""

    project: str
    rows: tuple[Row, ...]
    colours: Mapping[str, Colour] = field(default_factory=lambda: {ANY: "rgb"})
    """In which order it takes colours, by what stands before its names, or for ``ANY``."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """How it takes pixels from 0 to 1."""
    left_out: tuple[str, ...] = ()
    """What files hold beside the network, such as the centres of the classes of training: beginnings of names."""


@dataclass(frozen=True)
class Fitted:
    """A file laid beside a layout."""

    layout: Layout
    prefix: str
    state: dict[str, Tensor] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """What maps to what."""
    left_out: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def colour(self) -> Colour | None:
        """In which order the file's network takes colours, where its names tell."""
        return self.layout.colours.get(self.prefix, self.layout.colours.get(ANY))

    @property
    def problem(self) -> str:
        """Say what does not fit, by name; empty if all does."""
        said = []
        for names, what in ((self.lacking, "lacks"), (self.wrong, "does not fit in"), (self.unknown, "has left over")):
            if names:
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                said.append(f"{what} {', '.join(names[:4])}{more}")
        return "; ".join(said)


def prefix_of(tensors: Mapping[str, Tensor], rows: Sequence[Row]) -> str:
    """Return what stands before all names, as of a network that another module held."""
    first = next(f"{row.source}.weight" for row in rows if row.source is not None)
    names = [name for name in tensors if name == first or name.endswith(f".{first}")]
    found = {name.removesuffix(first) for name in names}
    return max(sorted(found), key=lambda one: sum(f"{one}{row.source}.weight" in tensors for row in rows), default="")


def fit(tensors: Mapping[str, Tensor], layout: Layout, net: nn.Module) -> Fitted:
    """Lay a file beside a layout, tensor by tensor; what does not fit is told by name."""
    fitted = Fitted(layout, prefix_of(tensors, layout.rows))
    taken: set[str] = set()
    bias: Tensor | None = None
    for row in layout.rows:
        bias = _take(fitted, row, net.get_submodule(row.target), tensors, taken, bias)
    for name in (name for name in tensors if name not in taken):
        bare = name.removeprefix(fitted.prefix)
        beside = bare.startswith(layout.left_out) or name.startswith(layout.left_out)
        if layout.left_out and beside:
            fitted.left_out.append(name)
        elif not name.endswith(COUNTER):
            fitted.unknown.append(name)
    return fitted


def _take(
    fitted: Fitted, row: Row, layer: nn.Module, tensors: Mapping[str, Tensor], taken: set[str], bias: Tensor | None
) -> Tensor | None:
    """Take one layer; return a bias that the next one, BatchNorm, must take up."""
    if row.source is None:
        fitted.state.update({f"{row.target}.{name}": value for name, value in _unchanged(layer).items()})
        return None
    source = f"{fitted.prefix}{row.source}"
    for name, ours in layer.state_dict().items():
        theirs, target = f"{source}.{name}", f"{row.target}.{name}"
        found = tensors.get(theirs)
        if found is None:
            found = _implied(layer, name, ours, f"{source}.weight" in tensors)
        else:
            taken.add(theirs)
        if found is None:
            fitted.lacking.append(theirs)
            continue
        if found.shape != ours.shape and found.squeeze().shape == ours.squeeze().shape:
            found = found.reshape(ours.shape)
        if found.shape != ours.shape:
            fitted.wrong.append(f"{theirs} {tuple(found.shape)} for {tuple(ours.shape)}")
            continue
        if bias is not None and name == "running_mean":
            found = found - bias
        fitted.state[target] = found.to(ours.dtype)
        if name != COUNTER:
            fitted.pairs.append((theirs, target))
    spare = f"{source}.bias"
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is None and spare in tensors:
        taken.add(spare)
        fitted.pairs.append((spare, "the mean of the BatchNorm behind it"))
        return tensors[spare]
    return None


def _implied(layer: nn.Module, name: str, ours: Tensor, scaled: bool) -> Tensor | None:
    """Return what a file need not hold: a counter, and the scale and shift of a BatchNorm that has none."""
    if name == COUNTER:
        return torch.zeros(ours.shape, dtype=ours.dtype)
    if isinstance(layer, _BatchNorm) and not scaled and name in ("weight", "bias"):
        return torch.full(ours.shape, float(name == "weight"))
    return None


def _unchanged(layer: nn.Module) -> dict[str, Tensor]:
    channels = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.num_features
    assert isinstance(channels, int)
    return _nothing(layer, channels)


def _nothing(layer: nn.Module, channels: int) -> dict[str, Tensor]:
    """Return the weights with which a convolution or a BatchNorm changes nothing."""
    if isinstance(layer, nn.Conv2d):
        return {"weight": torch.eye(channels)[:, :, None, None]}
    assert isinstance(layer, _BatchNorm)
    return {
        "weight": torch.ones(channels),
        "bias": torch.zeros(channels),
        "running_mean": torch.zeros(channels),
        "running_var": torch.full((channels,), 1 - layer.eps),
        COUNTER: torch.tensor(0),
    }


def in_order(layers: Sequence[Layer], layout: Layout, net: nn.Module) -> dict[str, Tensor] | None:
    """Return the tensors of a graph's layers under the names of a layout, by their order; None if they are others.

    A convolution with a bias stands for itself and the BatchNorm behind it.
    """
    waiting, tensors = list(layers), dict[str, Tensor]()
    rows = [(row.source, net.get_submodule(row.target)) for row in layout.rows if row.source is not None]
    folded = False
    for source, layer in rows:
        if folded and isinstance(layer, _BatchNorm):
            folded = False
            continue
        if not waiting or not _is(waiting[0].kind, layer):
            return None
        given = waiting.pop(0).weights
        tensors |= {f"{source}.{name}": value for name, value in zip(_names(layer), given, strict=False)}
        folded = isinstance(layer, nn.Conv2d) and layer.bias is None and len(given) > 1
        if folded:
            tensors |= _folded(rows, source, tensors.pop(f"{source}.bias"))
    return None if waiting else tensors


def _folded(rows: Sequence[tuple[str, nn.Module]], source: str, bias: Tensor) -> dict[str, Tensor]:
    """Return the BatchNorm behind a layer that holds it already: it only adds the bias."""
    behind = next(index for index, row in enumerate(rows) if row[0] == source) + 1
    name, layer = rows[behind]
    assert isinstance(layer, _BatchNorm), "a convolution without bias has BatchNorm behind it"
    values = _nothing(layer, len(bias)) | {"bias": bias}
    return {f"{name}.{key}": value for key, value in values.items()}


def _is(kind: str, layer: nn.Module) -> bool:
    kinds: dict[str, type[nn.Module] | tuple[type[nn.Module], ...]] = {
        "Conv": nn.Conv2d, "BatchNormalization": _BatchNorm, "PRelu": nn.PReLU,
        "Gemm": (nn.Linear, nn.Conv2d), "MatMul": (nn.Linear, nn.Conv2d),
    }  # fmt: skip
    return isinstance(layer, kinds[kind])


def _names(layer: nn.Module) -> tuple[str, ...]:
    return ("weight", "bias", "running_mean", "running_var") if isinstance(layer, _BatchNorm) else ("weight", "bias")


def rows(pairs: Iterator[tuple[str | None, str]]) -> tuple[Row, ...]:
    """Return a table from pairs of names."""
    return tuple(Row(source, target) for source, target in pairs)


def refuse(path: Path, network: str, fitted: Fitted) -> None:
    """Refuse a file that does not fit, by name."""
    if problem := fitted.problem:
        raise UserError(str(path), f"is no {network} as {fitted.layout.project} writes it: it {problem}")


def in_rgb(state: Mapping[str, Tensor], net: nn.Module, order: Colour) -> dict[str, Tensor]:
    """Return weights for colours in the order RGB: the first layer's, turned around if they were for BGR."""
    if order == "rgb":
        return dict(state)
    first = next(name for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d))
    return {**state, f"{first}.weight": state[f"{first}.weight"].flip(1)}


# What a conversion has come to: a network with weights, where each came from, and what the file says of itself.


@dataclass(frozen=True, eq=False)
class Converted:
    """A network of ours with a file's weights in it, not yet compared or written."""

    project: str
    """Whose layout the file had."""
    net: nn.Module
    """Ours, taking RGB from 0 to 1."""
    weights: Mapping[str, Tensor]
    """What is written, under the names of the place that it is for."""
    pairs: list[tuple[str, str]]
    """What maps to what."""
    left_out: list[str]
    """What the file holds beside the network."""
    colour: Colour
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """How the source takes pictures, with pixels from 0 to 1."""
    size: int
    """The side of a picture."""
    network: Mapping[str, Any]
    """What a recipe says in ``method.network``."""
    use: str
    """The lines of a recipe that start from the file."""
    note: str = ""
    """In what it is not quite the source."""
    tolerance: float = 1e-3
    """How far features at unit length may be from a reference's."""

    def lines(self) -> list[str]:
        """Say what maps to what."""
        width = max(len(theirs) for theirs, _ in self.pairs)
        said = [f"{theirs:<{width}}  {ours}" for theirs, ours in self.pairs]
        return said + [f"{name:<{width}}  left out" for name in self.left_out]


# Layouts of published face recognition networks, each beside the network here that computes the same.
#
# - insightface's ``arcface_torch`` (J. Guo, J. Deng et al.): iresnet18, 50 and 100; RGB from −1 to 1.
# - AdaFace and CVLface (M. Kim et al.): "IR" networks with the same blocks. Where a stage keeps the width, their
# shortcut
# takes every second pixel, which is a convolution with the unit matrix. AdaFace's own checkpoints have names that
# begin
# with ``model.`` and take BGR, CVLface's have names that begin with ``net.`` and take RGB.
# - InsightFace_Pytorch (TreB1eN), on which many others rest: MobileFaceNet with the layers of its paper.
# - MobileFaceNet of Y. Liu (``foamliu``), whose network is ``mobilefacenet-dw`` here.


Pairs = Iterator[tuple[str | None, str]]

RESIDUAL = ("bn1", "conv1", "bn2", "prelu", "conv2", "bn3")
"""The layers of a block of insightface's, in the order of ours."""


def insightface(depth: int) -> Layout:
    """Return the layout of arcface_torch's iresnet."""

    def pairs() -> Pairs:
        yield from zip(("conv1", "bn1", "prelu"), ("stem.0", "stem.1", "stem.2"), strict=True)
        for stage, number, here in _blocks(depth):
            there = f"layer{stage}.{number}"
            yield from ((f"{there}.{name}", f"{here}.residual.{index}") for index, name in enumerate(RESIDUAL))
            if number == 0:
                yield from ((f"{there}.downsample.{index}", f"{here}.shortcut.{index}") for index in (0, 1))
        yield from (("bn2", "norm"), ("fc", "linear"), ("features", "features"))

    return Layout("insightface arcface_torch", rows(pairs()))


def adaface(depth: int) -> Layout:
    """Return the layout of AdaFace's and CVLface's IR networks."""

    def pairs() -> Pairs:
        yield from ((f"input_layer.{index}", f"stem.{index}") for index in range(3))
        for position, (stage, number, here) in enumerate(_blocks(depth)):
            there = f"body.{position}"
            if number == 0:
                named = stage > 1  # the first stage keeps the width
                for index in (0, 1):
                    yield f"{there}.shortcut_layer.{index}" if named else None, f"{here}.shortcut.{index}"
            yield from ((f"{there}.res_layer.{index}", f"{here}.residual.{index}") for index in range(6))
        yield from (("output_layer.0", "norm"), ("output_layer.3", "linear"), ("output_layer.4", "features"))

    colours: dict[str, Colour] = {"model.": "bgr", "net.": "rgb", "model.net.": "rgb"}
    return Layout("AdaFace and CVLface", rows(pairs()), colours, left_out=("head.",))


def _blocks(depth: int) -> Iterator[tuple[int, int, str]]:
    """Yield each block's stage, its number in it, and its name here."""
    for stage, count in enumerate(IRESNET_BLOCKS[depth], 1):
        for number in range(count):
            yield stage, number, f"stage{stage}.{number}"


def treb1en() -> Layout:
    """Return the layout of InsightFace_Pytorch's MobileFaceNet."""
    block = ("conv.conv", "conv.bn", "conv.prelu", "conv_dw.conv", "conv_dw.bn", "conv_dw.prelu", "project.conv",
             "project.bn")  # fmt: skip
    places = {"stage1": ("conv_23", "conv_3"), "stage2": ("conv_34", ""), "stage3": ("", "conv_4"),
              "stage4": ("conv_45", ""), "stage5": ("", "conv_5")}  # fmt: skip

    def pairs() -> Pairs:
        for there, here in (("conv1", "convolution"), ("conv2_dw", "depthwise")):
            yield from ((f"{there}.{name}", f"{here}.{index}") for index, name in enumerate(("conv", "bn", "prelu")))
        for number, (_, _, repetitions, _) in enumerate(BOTTLENECKS, 1):
            first, rest = places[f"stage{number}"]
            theirs = [first] if first else []
            theirs += [f"{rest}.model.{index}" for index in range(repetitions - len(theirs))]
            for index, there in enumerate(theirs):
                here = f"stage{number}.{index}.residual"
                yield from ((f"{there}.{name}", f"{here}.{layer}") for layer, name in enumerate(block))
        yield from ((f"conv_6_sep.{name}", f"wide.{index}") for index, name in enumerate(("conv", "bn", "prelu")))
        yield from ((f"conv_6_dw.{name}", f"global.{index}") for index, name in enumerate(("conv", "bn")))
        yield from (("linear", "features.0"), ("bn", "features.1"))

    return Layout("InsightFace_Pytorch (MobileFaceNet)", rows(pairs()))


def foamliu() -> Layout:
    """Return the layout of foamliu's MobileFaceNet."""

    def pairs() -> Pairs:
        yield from ((f"conv1.{index}", f"convolution.{index}") for index in (0, 1))
        yield from (("dw_conv.depthwise", "depthwise.0"), ("dw_conv.bn1", "depthwise.1"))
        yield from (("dw_conv.pointwise", "pointwise.0"), ("dw_conv.bn2", "pointwise.1"))
        block = {"0.0": 0, "0.1": 1, "1.0": 3, "1.1": 4, "2": 6, "3": 7}
        position = 0
        for number, (_, _, repetitions, _) in enumerate(BOTTLENECKS, 1):
            for index in range(repetitions):
                here = f"stage{number}.{index}.residual"
                yield from ((f"features.{position}.conv.{name}", f"{here}.{at}") for name, at in block.items())
                position += 1
        yield from ((f"conv2.{index}", f"wide.{index}") for index in (0, 1))
        yield from (("gdconv.depthwise", "global.0"), ("gdconv.bn", "global.1"))
        yield from (("conv3", "features.0"), ("bn", "features.1"))

    return Layout("foamliu MobileFaceNet", rows(pairs()), mean=IMAGENET_MEAN, std=IMAGENET_STD)


def layouts_of(network: str) -> tuple[Layout, ...]:
    """Return the layouts in which files of one of our face networks are known."""
    if network.startswith("iresnet"):
        depth = int(network.removeprefix("iresnet"))
        return insightface(depth), adaface(depth)
    return (foamliu(),) if network == "mobilefacenet-dw" else (treb1en(),)
