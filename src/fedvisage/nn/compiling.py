"""The blocks of networks, compiled one by one by torch.compile.

What methods call are parts of a network, and often pieces of these: the stages of a ResNet without its last layer, a
transformer up to some block. So what is compiled are the modules that lie directly in a part; and as many of them are
alike, this takes less time than a whole network would. Weights keep their names, and copies are plain again.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

LISTS = (nn.ModuleList, nn.ModuleDict)
"""Modules that only hold others."""


def compile_blocks(net: nn.ModuleDict) -> None:
    """Have each block compiled when it is first called."""
    for block in blocks_of(net):
        block.compile()


def blocks_of(net: nn.ModuleDict) -> Iterator[nn.Module]:
    """Return the modules of each part that hold others, with weights; the part, where there are none."""
    for part in net.values():
        yield from list(_within(part)) or [part]


def _within(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, LISTS):
            yield from _within(child)
        elif next(child.children(), None) is not None and next(child.parameters(), None) is not None:
            yield child


def uncompiled(error: Exception) -> str | None:
    """Return why something could not be compiled; none if an error is about something else."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
