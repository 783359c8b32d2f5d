"""What a protection is: one step of the site's chain, or one of the server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from fedvisage.federation.declared import Call
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Federation, Recipe


class Outgoing(Protocol):
    """A step at the site: it stands around the calls of a method, and may change what they declare."""

    @property
    def name(self) -> str:
        """The word for it."""
        ...

    def wanted(self, federation: Federation) -> bool:
        """Tell whether a recipe asks for it."""
        ...

    def around(self, calls: Mapping[str, Call], recipe: Recipe, net: nn.ModuleDict) -> dict[str, Call]:
        """Return the calls with this step taken after what they did before."""
        ...


@dataclass(frozen=True)
class Mixed:
    """A mean of so many uploads of a round, and what the server's weights are meanwhile."""

    mean: Message
    count: int
    round: int
    present: Callable[[], Message]
    releases: Releases | None


class Incoming:
    """A step at the server: on each upload, or on what they came to. Unless said, it changes nothing."""

    name: str = ""

    def wanted(self, federation: Federation) -> bool:
        """Tell whether a recipe asks for it."""
        raise NotImplementedError

    def each(self, upload: Message, lent: Callable[[], Message], federation: Federation) -> Message:
        """Return one site's upload as it goes into the mean; ``lent`` returns what the sites of this round got."""
        return upload

    def whole(self, mixed: Mixed, recipe: Recipe) -> Message:
        """Return the mean as it goes into the model."""
        return mixed.mean
