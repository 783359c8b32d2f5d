"""One hostile case: the changes to a valid input, and the independent check of what the program accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from fedvisage.base.errors import RunFailed, UserError

T = TypeVar("T")

LONGEST_MESSAGE = 2000
"""Characters of a message that is shown to a person."""


class WronglyAccepted(Exception):
    """The program accepted an input that it must refuse; raised by the independent check."""


class Rejected(Exception):
    """The program refused an input without an exception, with the message that a person is shown."""


REFUSALS = (UserError, RunFailed, Rejected)
"""The valid ends of a hostile input that is not harmless."""


@dataclass(frozen=True)
class Case:
    """The changes to an input, and its check; input that passes the check without an exception is harmless."""

    changes: list[str]
    """Descriptions of the changes; the check may add some."""
    check: Callable[[], None]
    links: bool = False
    """True if a link may replace a file; the program must not reveal the content of its target."""


class Kind(Protocol):
    """Creates cases of one kind from files in the directory ``prepared``."""

    def __init__(self, prepared: Path) -> None:
        """Prepare the inputs that all cases change."""
        ...

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Create a case in a directory of its own."""
        ...


def message_fault(error: BaseException) -> str | None:
    """Return the fault of a refusal's message, or None."""
    text = str(error)
    if not text.isprintable():
        return f"the message contains control characters: {text[:120]!r}"
    return f"the message has {len(text)} characters: {text[:120]}…" if len(text) > LONGEST_MESSAGE else None


def pick(draws: np.random.Generator, options: Sequence[T]) -> T:
    """Draw one of several options of any type."""
    return options[int(draws.integers(len(options)))]
