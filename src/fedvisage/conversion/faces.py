"""Layouts of published face recognition networks, each beside the network here that computes the same.

- insightface's ``arcface_torch`` (J. Guo, J. Deng et al.): iresnet18, 50 and 100; RGB from −1 to 1.
- AdaFace and CVLface (M. Kim et al.): "IR" networks with the same blocks. Where a stage keeps the width, their shortcut
  takes every second pixel, which is a convolution with the unit matrix. AdaFace's own checkpoints have names that begin
  with ``model.`` and take BGR, CVLface's have names that begin with ``net.`` and take RGB.
- InsightFace_Pytorch (TreB1eN), on which many others rest: MobileFaceNet with the layers of its paper.
- MobileFaceNet of Y. Liu (``foamliu``), whose network is ``mobilefacenet-dw`` here.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedvisage.conversion.layout import Colour, Layout, rows
from fedvisage.nn.embedding import IMAGENET_MEAN, IMAGENET_STD
from fedvisage.nn.iresnet import BLOCKS
from fedvisage.nn.mobilefacenet import BOTTLENECKS

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
    for stage, count in enumerate(BLOCKS[depth], 1):
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
