"""One hostile case: what was done to an honest input, how it is taken in, and what an independent look says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from fedvisage.base.errors import RunFailed, UserError

T = TypeVar("T")

LONGEST = 2000
"""Letters of a line that is shown to a person."""


class Admitted(Exception):
    """Something was taken in that should not have been; raised by the independent look at it."""


class Turned(Exception):
    """Something was turned away by a door that has no exception for it, with the line that a person is shown."""


KNOWN = (UserError, RunFailed, Turned)
"""How hostile input may end, beside being taken in because it is harmless."""


@dataclass(frozen=True)
class Case:
    """What was done, and how to take it in; what ``take`` takes in without an error was looked at and is harmless."""

    done: list[str]
    """What was done, in words; taking it in may add some."""
    take: Callable[[], None]
    links: bool = False
    """Whether a link may stand for a file, wherever it leads; nothing of what lies behind it may be told."""


class Kind(Protocol):
    """Makes cases of one kind; whatever it needs for all of them lies in the directory that it was given."""

    def __init__(self, prepared: Path) -> None:
        """Prepare what cases are made of, in a directory of its own."""
        ...

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Make a case in a directory of its own."""
        ...


def line_of(error: BaseException) -> str | None:
    """Return what is wrong with the line by which an input was turned away; None if it is as it should be."""
    text = str(error)
    if not text.isprintable():
        return f"the line holds letters that act on a terminal: {text[:120]!r}"
    return f"the line has {len(text)} letters: {text[:120]}…" if len(text) > LONGEST else None


def pick(draws: np.random.Generator, among: list[T] | tuple[T, ...]) -> T:
    """Draw one of some things, of whatever type."""
    return among[int(draws.integers(len(among)))]
