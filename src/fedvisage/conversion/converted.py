"""What a conversion has come to: a network with weights, where each came from, and what the file says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedvisage.conversion.layout import Colour


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
