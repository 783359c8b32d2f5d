"""The two ways in which a command ends badly: the user's mistake, and a run that failed; each is told in one line.

What a line quotes may have been written to act on a terminal, or to fill it: a file's name, a recipe's key, a site's
reason. So lines are made plain here, wherever their words come from.
"""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 2000
"""Letters of a line; nobody reads more."""


class UserError(Exception):
    """A mistake in a call, a recipe or data that the user can mend: shown without a traceback, exit code 2."""

    def __init__(self, place: str, message: str) -> None:
        """Remember where the mistake is (a recipe key, a path, an option) and what to do about it."""
        # Both go to the base class: a worker process sends an exception as its class and these arguments.
        super().__init__(place, message)
        self.place = place
        self.message = message

    def __str__(self) -> str:
        """Return the line that is shown."""
        return f"{plain_line(self.place, LONGEST // 4)}: {plain_line(self.message, LONGEST // 2)}"


class RunFailed(Exception):
    """A correct call whose run could not go on (no quorum, full disk, interrupted): exit code 1, can be resumed."""

    code = 1

    def __str__(self) -> str:
        """Return the line that is shown."""
        return plain_line(super().__str__())


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: what ends cleanly on Ctrl-C ends so on this."""


class Ended(RunFailed):
    """Ended from outside by SIGTERM: the exit code that shells give such a process."""

    code = 143


def meant(name: str, known: Iterable[str]) -> str:
    """Say which of the known names was probably meant; nothing if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def choice(name: str, known: Iterable[str]) -> str:
    """Say which of the known names was meant, or which there are."""
    offered = sorted(known)
    return meant(name, offered) or f"; choose one of {', '.join(offered)}"


def plain_line(text: str, most: int = LONGEST) -> str:
    """Return a text as one line that can be shown, stored and sent, whatever it was made of."""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    if shown.isprintable():
        return shown
    shown = " ".join(shown.split("\n"))
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


class BadFile(Exception):
    """A file that cannot be used; the message is the reason for the list of skipped files."""


def printable(text: str) -> str:
    """Return a text that can be shown and stored, whatever bytes it was made of."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
