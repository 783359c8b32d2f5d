"""Choice of the memory layout and number format of a run, by a rule on its network and the processor.

The run's resolved recipe records the choice, so a resumed run, the workers, the sites of a federation and a repetition
of that recipe use the same settings. ``python -m benchmarks.layouts`` prints the measurements behind the rule
(docs/decisions/0041-layout-rule.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedvisage.nn.compute import Compute, Layout
from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import Input, Recipe
from fedvisage.runs.directory import close_settings
from fedvisage.tasks.catalogue import Setup

LONG_ROW = 7000
"""The least number of values in a long row of a convolution's input: in fp32 it fills the 32 KiB of a core's cache."""


@dataclass(frozen=True)
class NetworkTraits:
    """The traits of a network on which its fastest layout depends."""

    longest_row: int
    """The largest number of values (channels × side) in a row of a convolution's input."""
    group_norm: bool
    """Whether the network contains GroupNorm, as the convolutional tokenizer of a hybrid transformer does."""


def with_chosen_settings(setup: Setup) -> Recipe:
    """Return a setup's recipe with the number format of its device, and the layout that the rule chooses."""
    recipe = setup.recipe
    settings: dict[str, str] = {"precision": setup.compute.precision}
    if recipe.runtime.layout == "auto":
        instructions = torch.backends.cpu.get_cpu_capability()
        settings["layout"] = choose_layout(
            setup.compute, instructions, lambda: describe_network(setup.method.initial_network(recipe), recipe.input)
        )
    return close_settings(recipe, settings)


def choose_layout(compute: Compute, instructions: str, network: Callable[[], NetworkTraits]) -> Layout:
    """Return the fastest layout on a device in a number format, with a processor's instruction set.

    ``network`` is called only where the layout depends on the network, because building a large one takes seconds.
    """
    if compute.device.type != "cpu":
        return "last"
    if compute.half:  # GroupNorm in bf16 is several times slower with the channels last
        return "first" if network().group_norm else "last"
    # AVX2's gradient of a convolution slows down with the channels last as soon as a row does not fit the cache.
    return "first" if instructions == "AVX2" and network().longest_row >= LONG_ROW else "last"


def describe_network(network: nn.ModuleDict, image: Input) -> NetworkTraits:
    """Return the traits of a network whose parts are applied to images of a recipe's size."""
    channels = CHANNELS[image.colour]
    longest = max((_longest_row(part, channels, image.size) for part in network.values()), default=0)
    return NetworkTraits(longest, any(isinstance(layer, nn.GroupNorm) for layer in network.modules()))


def _longest_row(part: nn.Module, channels: int, side: int) -> int:
    """Return the longest row of the part's convolutions, assuming that its layers follow each other as registered.

    Parts that take no images count as 0: their inputs are smaller than those of the part before. Grouped and 1×1
    convolutions, such as shortcuts beside other layers, are left out; the layout matters little for them.
    """
    longest = 0
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.kernel_size != (1, 1):
            if longest == 0 and layer.in_channels != channels:
                return 0
            longest = max(longest, layer.in_channels * side)
            side //= layer.stride[0]
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            side //= layer.stride if isinstance(layer.stride, int) else layer.stride[0]
    return longest
