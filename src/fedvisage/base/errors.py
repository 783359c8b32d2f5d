"""Exceptions that end a command with one line: a user's mistake, or a run that failed.

A line may quote text written to attack a terminal or to fill it: a file name, a recipe key, a site's reason. So this
module removes control characters from every line, whatever its source.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 2000
"""Maximum characters of a line."""


class UserError(Exception):
    """A mistake in a call, a recipe or data that its author can correct: one line without a traceback, exit code 2."""

    def __init__(self, place: str, message: str) -> None:
        """Store the location of the mistake (a recipe key, a path, an option) and its remedy."""
        # Both go to the base class: a worker process sends an exception as its class and these arguments.
        super().__init__(place, message)
        self.place = place
        self.message = message

    def __str__(self) -> str:
        """Return the line to print."""
        place = re.sub(r"^(\w{2,}):/(?=[^/])", r"\1://", self.place)  # a path has only one of an address's slashes
        return f"{plain_line(place, LONGEST // 4)}: {plain_line(self.message, LONGEST // 2)}"


class RunFailed(Exception):
    """A correct call whose run could not continue (no quorum, full disk): exit code 1, can be resumed."""

    code = 1

    def __str__(self) -> str:
        """Return the line to print."""
        return plain_line(super().__str__())


class NoRoom(RunFailed):
    """A file could not be written because the disk, a quota or the process's limit leaves no room for it."""

    def __init__(self, place: str, fault: str, advice: str) -> None:
        """Store the file, the fault, and how to continue."""
        super().__init__(place, fault, advice)
        self.place, self.fault = place, fault

    def __str__(self) -> str:
        """Return the line to print."""
        return plain_line(f"{self.args[0]}: {self.args[1]}, and {self.args[2]}")


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM arrived. Code that cleans up on Ctrl-C also cleans up on this exception."""


class RunInterrupted(RunFailed):
    """Ctrl-C ended a command: the exit code that shells give such a process, unlike that of any decision."""

    code = 130


class RunTerminated(RunFailed):
    """A run ended from outside by SIGTERM, with the exit code that shells give such a process."""

    code = 143


def suggestion(name: str, valid_names: Iterable[str]) -> str:
    """Return a hint with the known name nearest to this one; an empty text if none is near."""
    near = get_close_matches(name, list(valid_names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def choice_hint(name: str, valid_names: Iterable[str]) -> str:
    """Return a hint with the known name nearest to this one, else the list of known names."""
    offered = sorted(valid_names)
    return suggestion(name, offered) or f"; choose one of {', '.join(offered)}"


def plain_line(text: str, most: int = LONGEST) -> str:
    """Return a text as one printable line of bounded length, whatever it contained."""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    if shown.isprintable():
        return shown
    shown = " ".join(shown.split("\n"))
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


class BadFile(Exception):
    """An unusable file; the message is its reason in the list of skipped files."""


def printable(text: str) -> str:
    """Replace every unprintable character of a text, so that it can be shown and stored."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
