"""Protocols: sets with their imports, and the data entries of a recipe for each target or fold.

A protocol is data only, and everything in it can be written in a recipe: entries have the same form, with a set's name
instead of its directory (``O only: official=train``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Import:
    """The import of a set: the kind of its dataset, and the options of the command."""

    kind: str
    options: str = ""


@dataclass(frozen=True)
class Fold:
    """The training entry of each site, and the target's entry for evaluation; entries begin with the name of a set."""

    sites: Mapping[str, str]
    target: str


@dataclass(frozen=True)
class Protocol:
    """A published division of datasets; the keys of `folds` are targets, or the numbers or names of folds."""

    name: str
    title: str
    source: str
    """The paper or page that describes it."""
    sets: Mapping[str, Import]
    folds: Mapping[str, Fold]
    threshold: Literal["source-eer", "source-train-eer"] = "source-train-eer"
    level: Literal["frame", "video"] = "video"
    notes: tuple[str, ...] = ()
    """Differences from the paper, and other remarks."""

    @property
    def size(self) -> int | None:
        """The size of the images in pixels, if the protocol sets one."""
        sizes = [spec.options.partition("--size ")[2].split(" ")[0] for spec in self.sets.values()]
        return next((int(size) for size in sizes if size), None)

    def of_fold(self, fold: str) -> Mapping[str, Import]:
        """Return the sets that a fold needs."""
        entries = self.folds[fold]
        named = {entry.split()[0] for entry in (*entries.sites.values(), entries.target)}
        return {name: spec for name, spec in self.sets.items() if name in named}


def leave_one_out(sites: Mapping[str, str], targets: Mapping[str, str]) -> dict[str, Fold]:
    """Return a fold for each target: all sites train except the one with the target's name."""
    return {
        name: Fold({site: entry for site, entry in sites.items() if site != name}, entry)
        for name, entry in targets.items()
    }
