"""Writes an identity set from an album: person by person, in order of their names.

Of each person's photographs a share is kept for testing, by a stream; of the people, a share is held out whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.data.crops import CropRecord
from fedvisage.data.journal import EVERY
from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.folder import Progress
from fedvisage.datasets.importers.report import ImportReport, Tally, shortcomings
from fedvisage.datasets.importers.shots import Aligned, Alignment, Developed, develop
from fedvisage.datasets.people.album import Album, Shot, WholeFile
from fedvisage.errors import UserError
from fedvisage.progress import counted
from fedvisage.streams import numpy_rng
from fedvisage.workers.spread import spread

ALBUMS_VERSION = 1
"""Changes whenever the same files give other pixels: an unfinished import is not continued by another version."""

Record = Mapping[str, Any]
"""What became of a person: whose photographs are done, what was skipped of them, contents, and counts."""


@dataclass(frozen=True)
class IdentityReport(ImportReport):
    """What was imported, how many people have too few photographs to be tested with, and how many were left out."""

    one_photograph: int = 0
    people_left_out: int = 0
    photographs_left_out: int = 0

    def warnings(self) -> list[str]:
        """Say what no training can use: all images are bona fide here."""
        return shortcomings(self.subjects, None, None)

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        lines = super().lines()
        if self.people_left_out:
            left_out = counted(self.people_left_out, "person", "people")
            said = f"{left_out} with {counted(self.photographs_left_out, 'photograph')} left out"
            lines.insert(1, f"{said}: fewer than was asked for")
        if self.one_photograph:
            single = counted(self.one_photograph, "person", "people")
            lines.insert(1, f"{single} with one photograph: trained on, not tested with")
        return lines


@dataclass(frozen=True)
class Division:
    """How photographs are divided: shares for testing and held out, the fewest of a person, and the seed."""

    test: float = 0.4
    heldout: float = 0.25
    least: int = 1
    seed: int = 0

    @property
    def text(self) -> str:
        """Return it as the line of a set's source says it."""
        line = f"test={self.test} heldout={self.heldout} seed={self.seed}"
        return line + (f" least={self.least}" if self.least > 1 else "")


@dataclass
class _Course:
    """What an import has done so far: contents that were seen, and people who are not in the set."""

    tally: Tally
    distinct: bool
    single: int = 0
    people_out: int = 0
    photographs_out: int = 0
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The name and the person of each content."""

    def take(self, shot: Shot, done: Developed) -> str:
        """Return why a photograph is not taken, or nothing."""
        if self.distinct and done.digest:
            name, person = self.seen.setdefault(done.digest, (shot.name, shot.person))
            if person != shot.person:
                both = f"{name!r} and {shot.name!r}"
                raise UserError(str(self.tally.source), f"{both} are the same file under two people; remove one")
            if name != shot.name:
                return f"the same content as {name}"
        return done.fault

    def replay(self, person: str, record: Record) -> None:
        """Count a person as an earlier attempt noted them."""
        assert record["person"] == person, "the key of an unfinished import stands for its people"
        for digest, name in record["contents"].items():
            self.seen[digest] = name, person
        self.single += record["single"]
        self.people_out += record["left_out"] > 0
        self.photographs_out += record["left_out"]
        for name, reason in record["skipped"]:
            self.tally.skip(name, reason)


def write_people(
    album: Album,
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    origin: str,
    alignment: Alignment,
    record: CropRecord,
    points: bool,
    division: Division,
    max_bad: float,
    distinct: bool,
    workers: int = 1,
    every: float = EVERY,
    progress: Progress | None = None,
) -> IdentityReport:
    """Write the set and return what is in it and what is not; with `distinct`, no photograph is taken twice.

    Any number of processes read and align; one writes, in order: the bytes are the same. Who is done is noted, and a
    later attempt goes on behind them; `every` so many seconds that is made safe against a kill.
    """
    tally = Tally(source, len(album) + len(album.skipped), max_bad, list(album.skipped))
    tally.stop_if_too_many()
    people = sorted(person for person, count in album.counts.items() if count >= division.least)
    if not people:
        raise UserError("least", f"nobody in {source} has {division.least} photographs; ask for fewer")
    away, whole = held_out(people, division.heldout, division.seed), sum(album.counts[person] for person in people)
    course = _Course(tally, distinct)
    course.people_out, course.photographs_out = len(album.counts) - len(people), len(album) - whole
    with Writer(
        destination, name=name, size=size, source=origin, points=points, identities=True, crop=record,
        further=album.columns, key=_key(f"{origin} {record!r} {size} {name}", album, people), every=every,
    ) as out:  # fmt: skip
        done = sum(album.counts[person] for person in people[: len(out.done)])
        for person, noted in zip(people, out.done, strict=False):
            course.replay(person, noted)
        rest = people[len(out.done) :]
        shots = (shot for person in rest for shot in album.shots(person))
        with closing(spread(partial(develop, alignment=alignment), shots, workers, torch=False)) as developed:
            for person in rest:
                count = album.counts[person]
                own = zip(album.shots(person), islice(developed, count), strict=True)
                draw = partial(_splits_of, album, person, division, person in away)
                out.note(**_write_person(out, person, count, own, course, division.least, draw))
                done += count
                if progress:
                    progress(done, whole)
        report = IdentityReport(
            **vars(tally.attach(out)),
            one_photograph=course.single,
            people_left_out=course.people_out,
            photographs_left_out=course.photographs_out,
        )
        out.attach_report(report.json())
    return report


def _write_person(
    out: Writer,
    person: str,
    count: int,
    shots: Iterable[tuple[Shot, Developed]],
    course: _Course,
    least: int,
    draw: Callable[[int], Sequence[str]],
) -> Record:
    """Write a person's photographs, if there are enough that can be read, and return what is to be noted.

    A dataset as it was published is written photograph by photograph, so that a person may have any number of them.
    """
    before, skipped, contents = out.count, list[tuple[str, str]](), dict[str, str]()

    def taken() -> Iterator[tuple[int, Shot, Aligned]]:
        for number, (shot, done) in enumerate(shots):
            if fault := course.take(shot, done):
                skipped.append((shot.name, fault))
                course.tally.skip(shot.name, fault)
            elif done.aligned is not None:
                yield number, shot, done.aligned
            if course.distinct and done.digest:
                contents.setdefault(done.digest, course.seen[done.digest][0])

    left_out = 0
    if course.distinct:
        pictures = [*taken()]
        left_out = len(pictures) if len(pictures) < least else 0
        kept = [] if left_out else pictures
        for (_, shot, aligned), split in zip(kept, draw(len(kept)), strict=True):
            _add(out, shot, aligned, split)
    else:
        splits = draw(count)
        for number, shot, aligned in taken():
            _add(out, shot, aligned, splits[number])
    single = int(out.count == before + 1)
    course.single += single
    course.people_out += left_out > 0
    course.photographs_out += left_out
    return {"person": person, "skipped": skipped, "contents": contents, "single": single, "left_out": left_out}


def _splits_of(album: Album, person: str, division: Division, away: bool, count: int) -> Sequence[str]:
    """Return the splits of a person's photographs: those that are given, or else drawn by a stream of their own."""
    if album.splits is not None:
        return album.splits(person, count)
    return draw_splits(count, division.test, away, numpy_rng(division.seed, "import", person))


def _add(out: Writer, shot: Shot, aligned: Aligned, split: str) -> None:
    image, points = aligned
    out.add(
        image[None], points=None if points is None else points[None], label=[1], species=["bonafide"],
        subject=[shot.person], video=[shot.original or shot.name], frame=[0], split=[split], item=[shot.name],
        group=[shot.group], further={column: [shot.extra.get(column, "")] for column in out.further},
    )  # fmt: skip


def _key(origin: str, album: Album, people: Sequence[str]) -> str:
    """Return what an unfinished import is known by: everything that decides the set's bytes, and the files' dates."""
    digest = hashlib.sha256(f"{ALBUMS_VERSION}\n{origin}\n{[one.path for one in album.skipped]}".encode())
    for person in people:
        shots = album.shots(person)
        digest.update(f"\n{person} {len(shots)}".encode(errors="surrogateescape"))
        for shot in shots if isinstance(shots[0].content, WholeFile) else [shots[0]]:
            status = shot.content.path.stat()
            box = () if shot.box is None else tuple(shot.box.tolist())
            line = (shot.name, shot.group, *sorted(shot.extra.items()), status.st_size, status.st_mtime_ns, *box)
            digest.update(repr(line).encode(errors="surrogateescape"))
    return f"import-{digest.hexdigest()[:16]}"


def held_out(people: list[str], share: float, seed: int) -> set[str]:
    """Draw who is held out; one person at least is not."""
    if not 0 <= share < 1:
        raise UserError("heldout", f"must be a share from 0 to below 1, got {share}")
    order = numpy_rng(seed, "import", "heldout").permutation(len(people))
    return {people[index] for index in order[: min(round(share * len(people)), len(people) - 1)]}


def draw_splits(count: int, test: float, away: bool, rng: np.random.Generator) -> list[str]:
    """Draw which photographs of a person are kept for testing; one at least is trained on."""
    if away:
        return ["heldout"] * count
    tested = min(round(test * count), count - 1) if count else 0
    chosen = set(rng.permutation(count)[:tested].tolist())
    return ["test" if number in chosen else "train" for number in range(count)]
