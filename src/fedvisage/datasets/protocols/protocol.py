"""What a protocol is: sets with the way to import them, and for each user or fold the data entries of a recipe.

It is data alone, and nothing that a recipe cannot say: entries are written as in a recipe, with a set's name in the
place of its directory (``O only: official=train``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Import:
    """How a set is imported: the kind of its dataset, and what follows the directories in the command."""

    kind: str
    options: str = ""


@dataclass(frozen=True)
class Fold:
    """Who trains on what, and what the model is judged on; entries begin with the name of a set."""

    sites: Mapping[str, str]
    user: str


@dataclass(frozen=True)
class Protocol:
    """A published way to divide datasets; `folds` are by user, or by the number or name of a fold."""

    name: str
    title: str
    source: str
    """The paper or page that it comes from."""
    sets: Mapping[str, Import]
    folds: Mapping[str, Fold]
    threshold: Literal["source-eer", "source-train-eer"] = "source-train-eer"
    level: Literal["frame", "video"] = "video"
    notes: tuple[str, ...] = field(default=())
    """What differs from the paper, and what else to know."""

    @property
    def size(self) -> int | None:
        """Pixels that the images have, where the protocol says so."""
        sizes = [one.options.partition("--size ")[2].split(" ")[0] for one in self.sets.values()]
        return next((int(size) for size in sizes if size), None)

    def of_fold(self, fold: str) -> Mapping[str, Import]:
        """Return the sets that a fold needs."""
        one = self.folds[fold]
        named = {entry.split()[0] for entry in (*one.sites.values(), one.user)}
        return {name: made for name, made in self.sets.items() if name in named}


def leave_one_out(sites: Mapping[str, str], users: Mapping[str, str]) -> dict[str, Fold]:
    """Return a fold for each user: all sites train but the one with the user's name."""
    return {
        name: Fold({site: entry for site, entry in sites.items() if site != name}, entry)
        for name, entry in users.items()
    }
