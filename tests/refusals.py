"""Checks of refusals by the place and the keywords of a message, which do not depend on its wording."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from fedvisage.base.errors import UserError

Failure = TypeVar("Failure", bound=Exception)
Command = Callable[..., tuple[int, str, str]]
"""The fixture ``command``: takes the words of a command; returns the exit code and the text of both streams."""


@contextmanager
def refused(
    place: str | Path, *keywords: str, error: type[UserError] = UserError
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a ``UserError`` of one line at this place, with every keyword in its message.

    A place is a recipe key, an option or a file. The end of a file's path suffices: ``refused("rows.csv")``. A place
    that ends with a dot matches any key below it. A keyword is a value, a number, a name, an option or one noun, which
    a new wording would keep and which distinguishes this refusal from others of the same call.
    """
    with pytest.raises(error) as caught:
        yield caught
    named, name = caught.value.place, str(place)
    below = name.endswith(".") and f"/{name}" in f"/{named}"
    assert named == name or named.endswith(f"/{name}") or below, f"expected a refusal of {place}: {caught.value}"
    assert "\n" not in str(caught.value)
    check_keywords(caught.value.message, keywords)


@contextmanager
def failed(error: type[Failure], *keywords: str) -> Iterator[pytest.ExceptionInfo[Failure]]:
    """Expect an exception without a place, such as ``RunFailed``, with every keyword in its text."""
    with pytest.raises(error) as caught:
        yield caught
    check_keywords(str(caught.value), keywords)


def check_output(output: str, place: str | Path, *keywords: str) -> None:
    """Check that a command printed one line with this place and every keyword."""
    (line,) = output.splitlines()
    message = re.fullmatch(rf"fedvisage: (?:.*/)?{re.escape(str(place))}: (.*)", line)
    assert message, f"expected a refusal of {place}: {line}"
    check_keywords(message[1], keywords)


def check_keywords(text: str, keywords: tuple[str, ...]) -> None:
    """Check that a text has every keyword in any case, as a whole word: 12 does not contain the keyword 1."""
    missing = [word for word in keywords if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)]
    assert not missing, f"expected {missing} in the message: {text}"
