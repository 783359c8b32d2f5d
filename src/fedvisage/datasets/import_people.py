"""Imports a dataset of people that is known into an identity set, and writes its lists of pairs beside the set.

A dataset is taken as its authors made it: a photograph that is there twice is taken twice. Crops that were delivered
aligned are taken on trust; in other photographs the face is found, or aligned by the five points that came with it.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.base.errors import UserError, printable
from fedvisage.base.files import write_atomically
from fedvisage.base.parallel import Progress, spread
from fedvisage.base.progress import counted
from fedvisage.base.streams import numpy_rng
from fedvisage.data.crops import CropRecord
from fedvisage.data.lists import OF_TEMPLATES, PAIR_LISTS, TemplateLists, list_beside, text_of_pairs, write_lists
from fedvisage.data.writer import EVERY, Writer
from fedvisage.datasets.on_portraits import Photograph, list_photographs
from fedvisage.datasets.people.choosing import PARTS, Choice, choose, order_digest
from fedvisage.datasets.people.layout import EVERYBODY, Album, Layout, Shot, WholeFile, grouped
from fedvisage.datasets.photographs import Aligned, Alignment, Developed, alignment_of, develop
from fedvisage.datasets.report import ImportReport, Tally, shortcomings
from fedvisage.faces.cropping import LARGEST, Crop, record_of

# Writes an identity set from an album: person by person, in order of their names.
#
# Of each person's photographs a share is kept for testing, by a stream; of the people, a share is held out whole.


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


# Imports photographs of people, one folder per person, into an identity set for face recognition.
#
# With ``--crop face`` the largest face of each photograph is found and aligned by its five points (eyes, nose,
# corners
# of the mouth). With ``--aligned`` (or ``--crop none``) the photographs are aligned already and are taken as they
# are,
# without a look for faces: a detector does not find each face in a tight crop. A file ``groups.csv`` in the source,
# with
# the columns ``person,group``, puts people into groups for tables by group; without it all are in one.
#
# Who has one photograph can be trained on but not tested with: such people are counted. Who has fewer than ``least``
# is
# left out, and counted too.


GROUPS = "groups.csv"


def import_identities(
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    crop: Crop = "face",
    test: float = 0.4,
    heldout: float = 0.25,
    least: int = 1,
    max_bad: float = 0.05,
    seed: int = 0,
    workers: int = 1,
    every: float = EVERY,
    progress: Progress | None = None,
    **_: object,
) -> IdentityReport:
    """Import a folder of people into an identity set and return what was imported and what was skipped."""
    alignment, division = alignment_of(crop, size), Division(test, heldout, least, seed)
    return write_people(
        _album(source),
        source,
        destination,
        name=name,
        size=size,
        origin=f"people {printable(source.resolve().name)} crop={crop} {division.text}",
        alignment=alignment,
        record=record_of(crop, aligned=True, search=LARGEST),
        points=crop == "face",
        division=division,
        max_bad=max_bad,
        distinct=True,
        workers=workers,
        every=every,
        progress=progress,
    )


def _album(source: Path) -> Album:
    listed, skipped = list_photographs(source)
    photographs = [one for one in listed if one.name != GROUPS]
    _check_folders(photographs, source)
    groups = read_groups(source / GROUPS)
    counts, of = grouped(
        Shot(one.name, one.subject, WholeFile(one.path), groups.get(one.subject, EVERYBODY)) for one in photographs
    )
    return Album(counts, of, tuple(one for one in skipped if one.path != GROUPS))


def read_groups(path: Path) -> dict[str, str]:
    """Read who is in which group; an absent file says nothing."""
    if not path.exists():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {row["person"]: row["group"] for row in csv.DictReader(file)}
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(str(path), f"must be a table with the columns person,group ({error})") from None


def _check_folders(photographs: list[Photograph], source: Path) -> None:
    loose = [one.name for one in photographs if one.own_subject]
    if loose:
        raise UserError(str(source), f"{loose[0]} is in no folder; each person's photographs lie in one named for them")


BY_POINTS = CropRecord(how="boxes", rotation=True, alignment="points")
"""What a set says of crops that were aligned by the dataset's own points."""


@dataclass(frozen=True)
class PeopleReport(IdentityReport):
    """What was imported of a dataset that is known, beside what a whole copy has, and the lists of pairs."""

    kind: str = ""
    found: tuple[int, int] = (0, 0)
    expected: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        lines = super().lines()
        both = [
            (count, most, what)
            for count, most, what in zip(self.found, self.expected or (0, 0), ("people", "photographs"), strict=True)
            if most
        ]
        said = [", ".join(f"{count:,} of {most:,} {what}" for count, most, what in both)] if both else []
        if any(count < most for count, most, _ in both):
            said.append("this is an incomplete copy: a whole one has more")
        lines[1:1] = [*said, *self.notes]
        return lines + [f"pairs: {one}" for one in self.pairs] + [f"templates: {one}" for one in self.templates]


def import_people(
    layout: Layout,
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    crop: Crop = "face",
    boxes: str = "detect",
    test: float = 0.4,
    heldout: float = 0.25,
    least: int = 1,
    max_bad: float = 0.05,
    seed: int = 0,
    split: str = "",
    people: int = 0,
    most: int = 0,
    workers: int = 1,
    every: float = EVERY,
    progress: Progress | None = None,
    **_: object,
) -> PeopleReport:
    """Import a dataset into an identity set and return what was imported and what was skipped.

    Nobody of a benchmark is held out. Its lists of pairs lie beside the set, as ``NAME-pairs.txt``, and so do those of
    templates.
    """
    crop = "none" if layout.aligned else crop
    boxes = boxes_of(layout, crop, boxes)
    alignment, record = _alignment(layout, crop, boxes, size)
    choice = _choice(layout, Choice(split, people, most, least, seed))
    division = division_of(layout, test, heldout, least, seed, split)
    whole = layout.scan(layout, source)
    album = choose(whole, choice)
    if boxes == "dataset":
        _check_points(album, source, layout)
    lists = {
        list_beside(destination, PAIR_LISTS, which): text_of_pairs(folds)
        for which, folds in sorted(album.pairs.items())
    }
    templates = album.templates or TemplateLists()
    for path in (*lists, *(list_beside(destination, OF_TEMPLATES, which) for which in templates.named)):
        if path.exists():
            raise UserError(str(path), "already exists; choose another destination or remove it first")
    plain = write_people(
        album,
        source,
        destination,
        name=name,
        size=size,
        origin=f"people {printable(source.resolve().name)} {settings_of_people(layout, crop, boxes, division, choice)}"
        + (f" order={order_digest(whole)}" if choice.part and whole.in_order else ""),
        alignment=alignment,
        record=record,
        points=crop == "face",
        division=division,
        max_bad=max_bad,
        distinct=False,
        workers=workers,
        every=every,
        progress=progress,
    )
    for path, text in lists.items():
        write_atomically(path, text.encode())
    written = write_lists(destination, templates)
    return PeopleReport(
        **vars(plain),
        kind=layout.kind,
        found=(len(album.counts), len(album)),
        expected=album.expected,
        notes=album.notes,
        pairs=tuple(f"{path} ({counted(_count(text), 'pair')})" for path, text in lists.items()),
        templates=tuple(
            f"{list_beside(destination, OF_TEMPLATES, which)} ({counted(count, 'line')})"
            for which, count in written.items()
        ),
    )


def settings_of_people(layout: Layout, crop: str, boxes: str, division: Division, choice: Choice) -> str:
    """Return how the line ends that says in a set how it was made: all that was chosen."""
    by_boxes = " boxes=dataset" if boxes == "dataset" else ""
    return f"kind={layout.kind} crop={crop} {division.text}{by_boxes}{choice.text}"


def division_of(layout: Layout, test: float, heldout: float, least: int, seed: int, split: str) -> Division:
    """Return how photographs are divided; nobody of a benchmark is held out, and a published part is not divided."""
    return Division(0.0, 0.0, seed=seed) if split else Division(test, 0.0 if layout.benchmark else heldout, least, seed)


def boxes_of(layout: Layout, crop: str, boxes: str) -> str:
    """Return whether faces are sought; crops in which a detector may find none are always aligned by their points."""
    return "dataset" if layout.by_points and crop == "face" else boxes


def _choice(layout: Layout, choice: Choice) -> Choice:
    """Refuse parts that are not known, or of a benchmark, which asks for all."""
    if choice.part not in ("", *PARTS):
        raise UserError("--split", f"{choice.part!r} is no known part; choose one of {', '.join(PARTS)}")
    if layout.benchmark and choice.text:
        raise UserError("--split" if choice.part else "--people" if choice.people else "--most",
                        f"leaves out what the lists of {layout.title} ask for; leave it out")  # fmt: skip
    return choice


def _alignment(layout: Layout, crop: Crop, boxes: str, size: int) -> tuple[Alignment, CropRecord]:
    """Return how crops are made, and what the set says of them."""
    if boxes not in ("detect", "dataset"):
        raise UserError("boxes", f"must be detect or dataset, got {boxes!r}")
    if boxes == "detect":
        return alignment_of(crop, size), record_of(crop, aligned=True, search="all" if layout.boxed else LARGEST)
    if not layout.points or crop != "face":
        said = "goes with --crop face" if layout.points else f"cannot be chosen: {layout.title} has no points"
        raise UserError("boxes", f"dataset {said}; use detect")
    return Alignment(crop, size, "dataset"), BY_POINTS


def _check_points(album: Album, source: Path, layout: Layout) -> None:
    if all(one.points is None for person in album.counts for one in album.shots(person)):
        raise UserError(str(source), f"has no list with points of {layout.title}; leave --boxes dataset out")


def _count(text: str) -> int:
    return sum(len(line.split("\t")) > 2 for line in text.splitlines())
