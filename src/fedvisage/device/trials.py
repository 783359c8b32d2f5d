"""Presentations of a dataset as it was downloaded: who enrols, who comes back, and who is attacked.

A presentation is a video, or the pictures of one folder. Where a dataset has enrolment videos, as Replay-Attack has,
these enrol; else a person's first bona fide presentation does, in order of names, and the rest come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fedvisage.data.rows import ENROL, PURPOSE
from fedvisage.datasets.finding import recognise
from fedvisage.datasets.importers.cropping import Image
from fedvisage.datasets.importers.films import open_film
from fedvisage.datasets.importers.videos import equidistant
from fedvisage.datasets.scanners.catalogue import SCANNERS
from fedvisage.datasets.scanners.item import Choices, Item
from fedvisage.datasets.scanners.scanner import Scanner
from fedvisage.datasets.scanners.tree import walk
from fedvisage.errors import UserError

OWN = "folder"
"""The layout of folders that no dataset's names are known in."""


@dataclass(frozen=True)
class Trial:
    """One presentation: its name, who it is of or against ("" where nobody knows), the species of an attack."""

    name: str
    subject: str
    species: str
    items: tuple[Item, ...]

    def frames(self, most: int) -> Iterator[Image]:
        """Yield up to so many frames at equal distances; what cannot be read is BadFile."""
        if len(self.items) > 1:
            for number in equidistant(len(self.items), most):
                yield from (image for _, image in open_film(self.items[number]).frames({0}))
            return
        film = open_film(self.items[0])
        yield from (image for _, image in film.frames(frozenset(equidistant(len(film), most))))


@dataclass(frozen=True)
class Trials:
    """All presentations of a dataset, and what is known of them."""

    title: str
    enrolment: str
    enrol: Mapping[str, Sequence[Trial]]
    probes: tuple[Trial, ...]
    skipped: int
    conditions: Mapping[str, Mapping[str, int]]
    """How many presentations have each value of what names say, such as the device or the light."""
    copy: tuple[str, ...] = ()
    """How much of what was published is there, by place: a small copy is not the dataset."""

    @property
    def count(self) -> int:
        """How many presentations there are, with those that enrol."""
        return len(self.probes) + sum(map(len, self.enrol.values()))


def trials_of(source: Path, kind: str = "", split: str = "") -> Trials:
    """List the presentations of a dataset, of one of its official splits if one is named."""
    scanner = _scanner(source, kind)
    listing = scanner.list(walk(source), Choices(enroll=scanner.enrolment))
    items = [item for item in listing.items if split in ("", item.split)]
    if not items:
        known = sorted({item.split for item in listing.items if item.split})
        said = f"choose one of {', '.join(known)}" if known else "this data has no official splits"
        raise UserError("--split", f"no presentation is of {split!r}; {said}")
    ordered = sorted(items, key=lambda item: (item.video, item.frame, item.name))
    grouped = [(_trial(tuple(group))) for _, group in groupby(ordered, key=lambda item: item.video)]
    official = any(item.extra.get(PURPOSE) == ENROL for item in items)
    enrol = _enrolment(grouped, official)
    apart = {trial.name for trials in enrol.values() for trial in trials}
    probes = tuple(trial for trial in grouped if trial.name not in apart)
    told = "the dataset's enrolment videos" if official else "each person's first bona fide presentation by name"
    copy = tuple(_counted(scanner, items))
    return Trials(scanner.title, told, enrol, probes, len(listing.skipped), _conditions(probes), copy)


def _counted(scanner: Scanner, items: Sequence[Item]) -> Iterator[str]:
    found = Counter((item.place, item.label) for item in items)
    for place, (real, attacks) in scanner.counts.items():
        both = ((found[place, 1], real, "bona fide"), (found[place, 0], attacks, "attacks"))
        if any(there for there, _, _ in both):
            said = [f"{there:,} of {count:,} {kind}" for there, count, kind in both if count]
            yield f"{place}: {', '.join(said)}"


def _scanner(source: Path, kind: str) -> Scanner:
    if not source.is_dir():
        raise UserError(str(source), "is no folder; give a dataset as it was downloaded, or one with real/ and attack/")
    name = kind or recognise(walk(source)) or OWN
    if name not in SCANNERS:
        known = ", ".join(SCANNERS)
        raise UserError("--kind", f"{name} is no dataset of presentation attacks; choose one of {known}")
    return SCANNERS[name]


def _trial(items: tuple[Item, ...]) -> Trial:
    first = items[0]
    return Trial(first.video, "" if first.own_subject else first.subject, "" if first.label else first.species, items)


def _enrolment(trials: Sequence[Trial], official: bool) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.species or not trial.subject:
            continue
        if official and trial.items[0].extra.get(PURPOSE) == ENROL:
            found.setdefault(trial.subject, []).append(trial)
        elif not official:
            found.setdefault(trial.subject, [trial])
    return found


def _conditions(trials: Sequence[Trial]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for trial in trials:
        for name, value in trial.items[0].extra.items():
            if value and name != PURPOSE:
                found.setdefault(name, Counter())[value] += 1
    return {name: dict(sorted(values.items())) for name, values in sorted(found.items())}
