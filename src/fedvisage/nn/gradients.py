"""Gradients as they come: added up for some weights while something else trains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn


@contextmanager
def gathered(weights: Mapping[str, nn.Parameter]) -> Iterator[Mapping[str, Tensor]]:
    """Add up the gradients that weights get meanwhile, by name: before anything clips them or steps by them.

    Frozen weights get none: theirs stay zero.
    """
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    trained = {name: value for name, value in weights.items() if value.requires_grad}
    hooks = [value.register_hook(partial(_add, sums[name])) for name, value in trained.items()]  # type: ignore[no-untyped-call]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()


def _add(total: Tensor, gradient: Tensor) -> None:
    total.add_(gradient)
