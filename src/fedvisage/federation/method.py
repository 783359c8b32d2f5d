"""A complete federated method: its declaration, and the program that runs at the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedvisage.federation.declared import (
    Call,
    Capability,
    Declared,
    Home,
    Member,
    Personal,
    Prediction,
    TaskName,
)
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import COST, EXAMPLES, LOSS, SUMMED, Kind, Upload

__all__ = [
    "COST",
    "EXAMPLES",
    "LOSS",
    "SUMMED",
    "Call",
    "Capability",
    "Home",
    "Kind",
    "Member",
    "Message",
    "Method",
    "Personal",
    "Prediction",
    "TaskName",
    "Upload",
]


def keep_initial_model(server: Server) -> None:
    """Leave the initial model unchanged."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Method(Declared):
    """A method as its paper prescribes it, without loops, transport or files."""

    server: Callable[[Server], Iterator[None]]
    """The server program, a generator that yields when its state is consistent."""
    begin: Callable[[Server], None] = keep_initial_model
    """Loads weights that the recipe names into the initial model, before the first round."""

    def __repr__(self) -> str:
        """Return the name, title and task."""
        return f"Method(name={self.name!r}, title={self.title!r}, task={self.task!r})"
