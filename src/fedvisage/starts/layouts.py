"""Layouts of other projects' networks: tables that map their layers to ours, and the mapping of a file by one.

A table has one row per layer, in the order of computation. Names of tensors follow from the layer. So do the few
different ways in which two projects write the same layer: a linear layer for a convolution of one pixel, a bias before
BatchNorm, BatchNorm without a scale.
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
from fedvisage.starts.files import GraphLayer

Colour = Literal["rgb", "bgr"]

ANY = "*"
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class LayerRow:
    """One layer: its name in the source, or None where the source computes nothing, and its name in our network."""

    source: str | None
    target: str


@dataclass(frozen=True)
class WeightsLayout:
    """A project's names for its layers, and its conventions for input pictures."""

    project: str
    rows: tuple[LayerRow, ...]
    colours: Mapping[str, Colour] = field(default_factory=lambda: {ANY: "rgb"})
    """The order of colours, by the prefix of the names, or for ``ANY``."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """The source's normalisation of pixels from 0 to 1."""
    left_out: tuple[str, ...] = ()
    """Prefixes of names that do not belong to the network, such as the class centres of training."""


@dataclass(frozen=True)
class FitResult:
    """A file mapped to a layout."""

    layout: WeightsLayout
    prefix: str
    state: dict[str, Tensor] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Names in the source and in our network."""
    left_out: list[str] = field(default_factory=list)
    """Tensors of the file that do not belong to the network."""
    unknown: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def colour(self) -> Colour | None:
        """The order of colours of the file's network, if its names determine it."""
        return self.layout.colours.get(self.prefix, self.layout.colours.get(ANY))

    @property
    def problem(self) -> str:
        """The mismatches, by name; empty if everything fits."""
        problems = []
        for names, verb in (
            (self.lacking, "lacks"),
            (self.wrong, "has mismatched shapes in"),
            (self.unknown, "has extra tensors"),
        ):
            if names:
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                problems.append(f"{verb} {', '.join(names[:4])}{more}")
        return "; ".join(problems)


def prefix_of(tensors: Mapping[str, Tensor], rows: Sequence[LayerRow]) -> str:
    """Return the prefix of all names, as when another module contained the network."""
    first = next(f"{row.source}.weight" for row in rows if row.source is not None)
    names = [name for name in tensors if name == first or name.endswith(f".{first}")]
    prefixes = {name.removesuffix(first) for name in names}
    return max(
        sorted(prefixes), key=lambda prefix: sum(f"{prefix}{row.source}.weight" in tensors for row in rows), default=""
    )


def fit_tensors(tensors: Mapping[str, Tensor], layout: WeightsLayout, net: nn.Module) -> FitResult:
    """Map a file to a layout, tensor by tensor, and collect mismatches by name."""
    fitted = FitResult(layout, prefix_of(tensors, layout.rows))
    taken: set[str] = set()
    bias: Tensor | None = None
    for row in layout.rows:
        bias = _take_layer(fitted, row, net.get_submodule(row.target), tensors, taken, bias)
    # The remaining tensors are expected extras, counters of BatchNorm, or unknown.
    for name in (name for name in tensors if name not in taken):
        bare = name.removeprefix(fitted.prefix)
        is_extra = bare.startswith(layout.left_out) or name.startswith(layout.left_out)
        if layout.left_out and is_extra:
            fitted.left_out.append(name)
        elif not name.endswith(COUNTER):
            fitted.unknown.append(name)
    return fitted


def _take_layer(
    fitted: FitResult,
    row: LayerRow,
    layer: nn.Module,
    tensors: Mapping[str, Tensor],
    taken: set[str],
    bias: Tensor | None,
) -> Tensor | None:
    """Map one layer; return a bias that the next layer, a BatchNorm, must absorb."""
    if row.source is None:
        channels = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.num_features
        assert isinstance(channels, int)
        identity = _identity_weights(layer, channels)
        fitted.state.update({f"{row.target}.{name}": value for name, value in identity.items()})
        return None
    source = f"{fitted.prefix}{row.source}"
    for name, expected in layer.state_dict().items():
        source_name, target = f"{source}.{name}", f"{row.target}.{name}"
        value = tensors.get(source_name)
        # A file may omit counters, and the scale and shift of a BatchNorm without them.
        has_scale = f"{source}.weight" in tensors
        if value is not None:
            taken.add(source_name)
        elif name == COUNTER:
            value = torch.zeros(expected.shape, dtype=expected.dtype)
        elif isinstance(layer, _BatchNorm) and not has_scale and name in ("weight", "bias"):
            value = torch.full(expected.shape, float(name == "weight"))
        if value is None:
            fitted.lacking.append(source_name)
            continue
        # A linear layer and a convolution of one pixel hold the same numbers.
        if value.shape != expected.shape and value.squeeze().shape == expected.squeeze().shape:
            value = value.reshape(expected.shape)
        if value.shape != expected.shape:
            fitted.wrong.append(f"{source_name} {tuple(value.shape)} for {tuple(expected.shape)}")
            continue
        # BatchNorm subtracts its mean, so a bias in front of it lowers the mean.
        if bias is not None and name == "running_mean":
            value = value - bias
        fitted.state[target] = value.to(expected.dtype)
        if name != COUNTER:
            fitted.pairs.append((source_name, target))
    # Our layer has no bias here: BatchNorm follows and absorbs the source's.
    source_bias = f"{source}.bias"
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is None and source_bias in tensors:
        taken.add(source_bias)
        fitted.pairs.append((source_bias, "the mean of the BatchNorm behind it"))
        return tensors[source_bias]
    return None


def _identity_weights(layer: nn.Module, channels: int) -> dict[str, Tensor]:
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


KINDS: Mapping[str, type[nn.Module] | tuple[type[nn.Module], ...]] = {
    "Conv": nn.Conv2d,
    "BatchNormalization": _BatchNorm,
    "PRelu": nn.PReLU,
    "Gemm": (nn.Linear, nn.Conv2d),
    "MatMul": (nn.Linear, nn.Conv2d),
}
"""The layers that compute the same as a node of a graph."""


def match_in_order(layers: Sequence[GraphLayer], layout: WeightsLayout, net: nn.Module) -> dict[str, Tensor] | None:
    """Map the layers of a graph to the names of a layout by their order; return None if the layers differ.

    A convolution with a bias counts as itself and the BatchNorm that follows it.
    """
    remaining, tensors = list(layers), dict[str, Tensor]()
    rows = [(row.source, net.get_submodule(row.target)) for row in layout.rows if row.source is not None]
    folded = False
    for index, (source, layer) in enumerate(rows):
        # The exporter folded this BatchNorm into the convolution before it.
        if folded and isinstance(layer, _BatchNorm):
            folded = False
            continue
        if not remaining or not isinstance(layer, KINDS[remaining[0].kind]):
            return None
        weights = remaining.pop(0).weights
        names: tuple[str, ...] = ("weight", "bias")
        if isinstance(layer, _BatchNorm):
            names = (*names, "running_mean", "running_var")
        tensors |= {f"{source}.{name}": value for name, value in zip(names, weights, strict=False)}
        folded = isinstance(layer, nn.Conv2d) and layer.bias is None and len(weights) > 1
        if folded:
            # A BatchNorm that was folded into its convolution only adds the bias.
            bias = tensors.pop(f"{source}.bias")
            name, norm = rows[index + 1]
            assert isinstance(norm, _BatchNorm), "a convolution without bias has BatchNorm behind it"
            values = _identity_weights(norm, len(bias)) | {"bias": bias}
            tensors |= {f"{name}.{key}": value for key, value in values.items()}
    return None if remaining else tensors


def rows_from(pairs: Iterator[tuple[str | None, str]]) -> tuple[LayerRow, ...]:
    """Return a table from pairs of names."""
    return tuple(LayerRow(source, target) for source, target in pairs)


def check_fit(path: Path, network: str, fitted: FitResult) -> None:
    """Raise ``UserError`` for a file that does not fit, with the names of the mismatches."""
    if problem := fitted.problem:
        raise UserError(str(path), f"is not a {network} in the layout of {fitted.layout.project}: it {problem}")


def to_rgb(state: Mapping[str, Tensor], net: nn.Module, order: Colour) -> dict[str, Tensor]:
    """Return weights for RGB input: the first layer's channels are reversed if they were for BGR."""
    if order == "rgb":
        return dict(state)
    first = next(name for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d))
    return {**state, f"{first}.weight": state[f"{first}.weight"].flip(1)}


@dataclass(frozen=True, eq=False)
class ConvertedNetwork:
    """One of our networks with a file's weights, the mapping of the weights, and the metadata for the file.

    It is not yet compared with a reference or written.
    """

    fitted: FitResult
    net: nn.Module
    """Our network; its input is RGB from 0 to 1."""
    weights: Mapping[str, Tensor]
    """The tensors to write, under the names in the network that starts from them."""
    colour: Colour
    """The source's order of colours."""
    size: int
    """The side of a picture in pixels."""
    network: Mapping[str, Any]
    """The value of ``method.network`` in a recipe."""
    margin: float | None = field(default=None, kw_only=True)
    """Attack detection: side of a crop over the longer side of the face box."""
    use: str
    """The lines of a recipe that starts from the file."""
    note: str = ""
    """A difference from the source network, if there is one."""
    tolerance: float = 1e-3
    """The largest accepted distance from the reference's features, at unit length."""


# Layouts of published face recognition networks, each with our equivalent network.
#
# - insightface's ``arcface_torch`` (J. Guo, J. Deng et al.): iresnet18, 50 and 100; RGB from −1 to 1.
# - AdaFace and CVLface (M. Kim et al.): "IR" networks with the same blocks. Where a stage keeps the width, their
#   shortcut takes every second pixel, which is a convolution with the unit matrix. AdaFace's own checkpoints have names
#   that begin with ``model.`` and take BGR, CVLface's have names that begin with ``net.`` and take RGB.
# - InsightFace_Pytorch (TreB1eN), the base of many other projects: MobileFaceNet with the layers of its paper.
# - MobileFaceNet of Y. Liu (``foamliu``), whose network is ``mobilefacenet-dw`` here.

Pairs = Iterator[tuple[str | None, str]]


def numbered(source: str, target: str, names: Sequence[str]) -> Pairs:
    """Yield the parts of a layer, which have names in the source and numbers in our network."""
    for index, name in enumerate(names):
        yield f"{source}.{name}", f"{target}.{index}"


RESIDUAL = ("bn1", "conv1", "bn2", "prelu", "conv2", "bn3")
"""The layers of a block of insightface's, in the order of our block's layers."""


def insightface(depth: int) -> WeightsLayout:
    """Return the layout of arcface_torch's iresnet."""

    def pairs() -> Pairs:
        yield from zip(("conv1", "bn1", "prelu"), ("stem.0", "stem.1", "stem.2"), strict=True)
        for stage, number, target in _blocks(depth):
            source = f"layer{stage}.{number}"
            yield from numbered(source, f"{target}.residual", RESIDUAL)
            if number == 0:
                yield from ((f"{source}.downsample.{index}", f"{target}.shortcut.{index}") for index in (0, 1))
        yield from (("bn2", "norm"), ("fc", "linear"), ("features", "features"))

    return WeightsLayout("insightface arcface_torch", rows_from(pairs()))


def adaface(depth: int) -> WeightsLayout:
    """Return the layout of AdaFace's and CVLface's IR networks."""

    def pairs() -> Pairs:
        yield from ((f"input_layer.{index}", f"stem.{index}") for index in range(3))
        for position, (stage, number, target) in enumerate(_blocks(depth)):
            source = f"body.{position}"
            if number == 0:
                has_shortcut = stage > 1  # the first stage keeps the width
                for index in (0, 1):
                    yield f"{source}.shortcut_layer.{index}" if has_shortcut else None, f"{target}.shortcut.{index}"
            yield from ((f"{source}.res_layer.{index}", f"{target}.residual.{index}") for index in range(6))
        yield from (("output_layer.0", "norm"), ("output_layer.3", "linear"), ("output_layer.4", "features"))

    colours: dict[str, Colour] = {"model.": "bgr", "net.": "rgb", "model.net.": "rgb"}
    return WeightsLayout("AdaFace and CVLface", rows_from(pairs()), colours, left_out=("head.",))


def _blocks(depth: int) -> Iterator[tuple[int, int, str]]:
    """Yield each block's stage, its number within the stage, and its name in our network."""
    for stage, count in enumerate(IRESNET_BLOCKS[depth], 1):
        for number in range(count):
            yield stage, number, f"stage{stage}.{number}"


MOBILE_LAYERS = ("conv", "bn", "prelu")
MOBILE_BLOCK = (
    *("conv.conv", "conv.bn", "conv.prelu"),
    *("conv_dw.conv", "conv_dw.bn", "conv_dw.prelu"),
    *("project.conv", "project.bn"),
)
"""The layers of a step and of a block of InsightFace_Pytorch's MobileFaceNet, from which MiniFASNet has its names."""


def treb1en() -> WeightsLayout:
    """Return the layout of InsightFace_Pytorch's MobileFaceNet."""
    places = (("conv_23", "conv_3"), ("conv_34", ""), ("", "conv_4"), ("conv_45", ""), ("", "conv_5"))

    def pairs() -> Pairs:
        for source, target in (("conv1", "convolution"), ("conv2_dw", "depthwise")):
            yield from numbered(source, target, MOBILE_LAYERS)
        for number, ((_, _, repetitions, _), (first, rest)) in enumerate(zip(BOTTLENECKS, places, strict=True), 1):
            blocks = [first] if first else []
            blocks += [f"{rest}.model.{index}" for index in range(repetitions - len(blocks))]
            for index, source in enumerate(blocks):
                yield from numbered(source, f"stage{number}.{index}.residual", MOBILE_BLOCK)
        yield from numbered("conv_6_sep", "wide", MOBILE_LAYERS)
        yield from numbered("conv_6_dw", "global", MOBILE_LAYERS[:2])
        yield from (("linear", "features.0"), ("bn", "features.1"))

    return WeightsLayout("InsightFace_Pytorch (MobileFaceNet)", rows_from(pairs()))


def foamliu() -> WeightsLayout:
    """Return the layout of foamliu's MobileFaceNet."""

    def pairs() -> Pairs:
        yield from ((f"conv1.{index}", f"convolution.{index}") for index in (0, 1))
        yield from (("dw_conv.depthwise", "depthwise.0"), ("dw_conv.bn1", "depthwise.1"))
        yield from (("dw_conv.pointwise", "pointwise.0"), ("dw_conv.bn2", "pointwise.1"))
        block = {"0.0": 0, "0.1": 1, "1.0": 3, "1.1": 4, "2": 6, "3": 7}
        position = 0
        for number, (_, _, repetitions, _) in enumerate(BOTTLENECKS, 1):
            for index in range(repetitions):
                target = f"stage{number}.{index}.residual"
                yield from ((f"features.{position}.conv.{name}", f"{target}.{at}") for name, at in block.items())
                position += 1
        yield from ((f"conv2.{index}", f"wide.{index}") for index in (0, 1))
        yield from (("gdconv.depthwise", "global.0"), ("gdconv.bn", "global.1"))
        yield from (("conv3", "features.0"), ("bn", "features.1"))

    return WeightsLayout("foamliu MobileFaceNet", rows_from(pairs()), mean=IMAGENET_MEAN, std=IMAGENET_STD)


def minivision(blocks: Sequence[int], excited: bool) -> WeightsLayout:
    """Return the layout of Minivision's MiniFASNet, given the number of blocks in each stage."""
    gate = {"fc1": 1, "bn1": 2, "fc2": 4, "bn2": 5}

    def pairs() -> Pairs:
        for source, target in (("conv1", "convolution"), ("conv2_dw", "depthwise")):
            yield from numbered(source, target, MOBILE_LAYERS)
        for stage, (count, narrowing, rest) in enumerate(zip(blocks, ("23", "34", "45"), "345", strict=True), 1):
            sources = [f"conv_{narrowing}", *(f"conv_{rest}.model.{index}" for index in range(count - 1))]
            for index, source in enumerate(sources):
                target = f"stage{stage}.{index}.residual"
                yield from numbered(source, target, MOBILE_BLOCK)
                if excited and index == count - 1:
                    yield from ((f"{source}.se_module.{name}", f"{target}.8.gate.{at}") for name, at in gate.items())
        yield from numbered("conv_6_sep", "wide", MOBILE_LAYERS)
        yield from numbered("conv_6_dw", "global", MOBILE_LAYERS[:2])
        yield from (("linear", "features.0"), ("bn", "features.1"), ("prob", "classes"))

    # The training network of the project also has a branch that predicts Fourier spectra.
    return WeightsLayout(
        "Minivision Silent-Face-Anti-Spoofing",
        rows_from(pairs()),
        {ANY: "bgr"},
        mean=(0.0, 0.0, 0.0),
        std=(1 / 255, 1 / 255, 1 / 255),
        left_out=("FTGenerator.", "module.FTGenerator."),
    )


def layouts_of(network: str) -> tuple[WeightsLayout, ...]:
    """Return the layouts of published files for one of our face networks."""
    if network.startswith("iresnet"):
        depth = int(network.removeprefix("iresnet"))
        return insightface(depth), adaface(depth)
    return (foamliu(),) if network == "mobilefacenet-dw" else (treb1en(),)
