"""Writes an identity set from an album: person by person, in order of their names.

Of each person's photographs a share is kept for testing, by a stream; of the people, a share is held out whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.cropping import Crop, Image, make_cropper, make_detector
from fedvisage.datasets.importers.folder import Progress
from fedvisage.datasets.importers.pictures import read_picture
from fedvisage.datasets.importers.report import BadFile, ImportReport, Tally, shortcomings
from fedvisage.datasets.people.album import Album, Shot
from fedvisage.errors import UserError
from fedvisage.faces.align import align
from fedvisage.progress import counted
from fedvisage.streams import numpy_rng

Aligned = tuple[Image, NDArray[np.float32] | None]
"""A crop, and the five points in it if faces are sought."""

Aligner = Callable[[Image, Shot], Aligned]
"""Makes the crop of a photograph, or raises BadFile."""


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
    aligner: Aligner
    distinct: bool
    single: int = 0
    people_out: int = 0
    photographs_out: int = 0
    seen: dict[str, Shot] = field(default_factory=dict)

    def read(self, shot: Shot) -> list[tuple[Shot, Aligned]]:
        """Return a photograph's crop, or nothing after noting why not."""
        try:
            content = shot.content.read()
            if self.distinct:
                self._refuse_copy(shot, content)
            return [(shot, self.aligner(read_picture(content), shot))]
        except BadFile as bad:
            self.tally.skip(shot.name, str(bad))
        except OSError as error:
            self.tally.skip(shot.name, f"cannot be read: {error.strerror or error}")
        return []

    def _refuse_copy(self, shot: Shot, content: bytes) -> None:
        earlier = self.seen.setdefault(hashlib.sha256(content).hexdigest(), shot)
        if earlier is shot:
            return
        if earlier.person != shot.person:
            both = f"{earlier.name!r} and {shot.name!r}"
            raise UserError(str(self.tally.source), f"{both} are the same file under two people; remove one")
        raise BadFile(f"the same content as {earlier.name}")


def write_people(
    album: Album,
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    origin: str,
    aligner: Aligner,
    record: CropRecord,
    points: bool,
    division: Division,
    max_bad: float,
    distinct: bool,
    progress: Progress | None,
) -> IdentityReport:
    """Write the set and return what is in it and what is not; with `distinct`, no photograph is taken twice."""
    tally = Tally(source, len(album) + len(album.skipped), max_bad, list(album.skipped))
    tally.stop_if_too_many()
    people = sorted(person for person, count in album.counts.items() if count >= division.least)
    if not people:
        raise UserError("least", f"nobody in {source} has {division.least} photographs; ask for fewer")
    away, whole = held_out(people, division.heldout, division.seed), sum(album.counts[person] for person in people)
    course, done = _Course(tally, aligner, distinct), 0
    course.people_out, course.photographs_out = len(album.counts) - len(people), len(album) - whole
    with Writer(
        destination, name=name, size=size, source=origin, points=points, identities=True, crop=record,
        further=album.columns,
    ) as out:  # fmt: skip
        for person in people:
            given = None if album.splits is None else album.splits(person, album.counts[person])
            _write_person(out, album.shots(person), course, division, person in away, given)
            done += album.counts[person]
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
    out: Writer, shots: Sequence[Shot], course: _Course, division: Division, away: bool, given: Sequence[str] | None
) -> None:
    """Write a person's photographs, if there are enough that can be read.

    A dataset as it was published is written photograph by photograph, so that a person may have any number of them.
    """
    rng = numpy_rng(division.seed, "import", shots[0].person)
    if not course.distinct:
        splits, before = given or draw_splits(len(shots), division.test, away, rng), out.count
        for shot, split in zip(shots, splits, strict=True):
            for picture in course.read(shot):
                _add(out, picture, split)
        course.single += out.count == before + 1
        return
    pictures = [picture for one in shots for picture in course.read(one)]
    if len(pictures) < division.least:
        course.people_out += bool(pictures)
        course.photographs_out += len(pictures)
        return
    course.single += len(pictures) == 1
    for picture, split in zip(pictures, draw_splits(len(pictures), division.test, away, rng), strict=True):
        _add(out, picture, split)


def _add(out: Writer, picture: tuple[Shot, Aligned], split: str) -> None:
    shot, (image, points) = picture
    out.add(
        image[None], points=None if points is None else points[None], label=[1], species=["bonafide"],
        subject=[shot.person], video=[shot.original or shot.name], frame=[0], split=[split], item=[shot.name],
        group=[shot.group], further={column: [shot.extra.get(column, "")] for column in out.further},
    )  # fmt: skip


def make_aligner(crop: Crop, size: int, threads: int = 1) -> Callable[[Image], Aligned]:
    """Return the function that makes an aligned crop of a photograph, or says why it cannot.

    `threads` are for the detector.
    """
    if crop == "centre":
        raise UserError("crop", "recognition needs faces aligned: use face, or none if they are aligned already")
    if crop == "face":
        detect = make_detector(threads)
        return lambda image: _found_and_aligned(image, detect, size)
    cropper = make_cropper(crop, size)
    return lambda image: (cropper(image).image, None)


def _found_and_aligned(image: Image, detect: Callable[[Image], list], size: int) -> Aligned:  # type: ignore[type-arg]
    faces = detect(image)
    if not faces:
        raise BadFile("no face found")
    face = max(faces, key=lambda one: one.box[2] * one.box[3])
    crop, points = align(image, face.points, size)
    return crop, points.astype(np.float32)


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
