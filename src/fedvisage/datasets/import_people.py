"""Import datasets of people, or folders of photographs, into identity sets, with lists of pairs next to the set.

A dataset is taken as published: a photograph that occurs twice is taken twice. Crops that come aligned are used
unchecked; in other photographs the face is detected, or aligned by the five points that come with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError, printable
from fedvisage.base.files import write_atomically
from fedvisage.base.parallel import Progress, map_in_order
from fedvisage.base.progress import format_count
from fedvisage.base.streams import numpy_rng
from fedvisage.data.crops import CropRecord
from fedvisage.data.lists import OF_TEMPLATES, PAIR_LISTS, TemplateLists, list_beside, text_of_pairs, write_lists
from fedvisage.data.partial_set import EVERY, import_key
from fedvisage.data.splits import draw_splits
from fedvisage.data.writer import Writer
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.choosing import PARTS, choose_subset, order_digest, subset_text
from fedvisage.datasets.people.layout import Layout, Photograph, PhotographList, WholeFile
from fedvisage.datasets.photographs import Aligned, Alignment, PhotographResult, read_photograph
from fedvisage.datasets.report import ImportReport, Tally
from fedvisage.faces.cropping import LARGEST, MTCNN, Crop, Search, record_of

# Identity sets from lists of photographs, written person by person in order of names.

PHOTOGRAPHS_VERSION = 1
"""Changes whenever the same files give different pixels, so that no import resumes one of another version."""

Record = Mapping[str, Any]
"""The result for one person: skipped photographs, contents, and counts."""


@dataclass(frozen=True)
class Division:
    """The division of photographs: shares for testing and held out, the minimum per person, and the seed."""

    test: float = 0.4
    heldout: float = 0.25
    least: int = 1
    seed: int = 0

    @property
    def text(self) -> str:
        """Return the division as written in the source line of a set."""
        line = f"test={self.test} heldout={self.heldout} seed={self.seed}"
        return line + (f" least={self.least}" if self.least > 1 else "")


@dataclass
class _PeopleImportState:
    """The state of an import: contents read so far, and counts of people left out."""

    tally: Tally
    distinct: bool
    single: int = 0
    people_out: int = 0
    photographs_out: int = 0
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The name and the person of each content digest."""

    def take(self, photograph: Photograph, done: PhotographResult) -> str:
        """Return the reason to skip a photograph, or an empty string."""
        if self.distinct and done.digest:
            name, person = self.seen.setdefault(done.digest, (photograph.name, photograph.person))
            if person != photograph.person:
                both = f"{name!r} and {photograph.name!r}"
                raise UserError(str(self.tally.source), f"{both} are the same file for two people; remove one")
            if name != photograph.name:
                return f"the same content as {name}"
        return done.fault

    def replay(self, person: str, record: Record) -> None:
        """Count a person from the record of an earlier attempt."""
        assert record["person"] == person, "the key of an unfinished import stands for its people"
        for digest, name in record["contents"].items():
            self.seen[digest] = name, person
        self.single += record["single"]
        self.people_out += record["left_out"] > 0
        self.photographs_out += record["left_out"]
        for name, reason in record["skipped"]:
            self.tally.skip(name, reason)


def write_people(
    listing: PhotographList,
    source: Path,
    destination: Path,
    options: ImportOptions,
    *,
    name: str,
    origin: str,
    alignment: Alignment,
    record: CropRecord,
    division: Division,
    distinct: bool,
    every: float = EVERY,
    progress: Progress | None = None,
) -> ImportReport:
    """Write the set and return the report; with `distinct`, skip photographs with repeated content.

    Any number of processes read and align; one process writes in order, so the bytes are always the same. Finished
    people are recorded, and a later attempt resumes after them; every `every` seconds the record is made safe against a
    kill.
    """
    tally = Tally(source, len(listing) + len(listing.skipped), options.max_bad, list(listing.skipped))
    tally.stop_if_too_many()
    people = sorted(person for person, count in listing.counts.items() if count >= division.least)
    if not people:
        raise UserError("least", f"no person in {source} has {division.least} photographs; choose fewer")
    if not 0 <= division.heldout < 1:
        raise UserError("heldout", f"must be in [0, 1), got {division.heldout}")
    # Draw the people to hold out; at least one person remains.
    order = numpy_rng(division.seed, "import", "heldout").permutation(len(people))
    heldout_count = min(round(division.heldout * len(people)), len(people) - 1)
    heldout_people = {people[index] for index in order[:heldout_count]}
    total = sum(listing.counts[person] for person in people)
    state = _PeopleImportState(tally, distinct)
    # People without enough photographs are left out before any photograph is read.
    state.people_out, state.photographs_out = len(listing.counts) - len(people), len(listing) - total
    skipped = [entry.path for entry in listing.skipped]
    beginning = f"{PHOTOGRAPHS_VERSION}\n{origin} {record!r} {alignment.size} {name}\n{skipped}"
    with Writer(
        destination,
        name=name,
        size=alignment.size,
        source=origin,
        points=alignment.crop == "face",
        identities=True,
        crop=record,
        further=listing.columns,
        key=import_key(beginning.encode(), _lines_of_key(listing, people)),
        every=every,
    ) as out:
        # Resume: count the people that an earlier attempt finished.
        done = sum(listing.counts[person] for person in people[: len(out.done)])
        for person, earlier in zip(people, out.done, strict=False):
            state.replay(person, earlier)
        remaining = people[len(out.done) :]
        # Photographs are read in parallel over all people; `islice` returns each person's share in order.
        photographs = (photograph for person in remaining for photograph in listing.photographs(person))
        with closing(
            map_in_order(partial(read_photograph, alignment=alignment), photographs, options.workers, torch=False)
        ) as developed:
            for person in remaining:
                count = listing.counts[person]
                results = zip(listing.photographs(person), islice(developed, count), strict=True)
                # The dataset's own splits, or drawn from the person's random stream.
                draw: Callable[[int], Sequence[str]] = partial(
                    draw_splits,
                    test=division.test,
                    away=person in heldout_people,
                    rng=numpy_rng(division.seed, "import", person),
                )
                if listing.splits is not None:
                    draw = partial(listing.splits, person)
                out.note(**_write_person(out, person, count, results, state, division.least, draw))
                done += count
                if progress:
                    progress(done, total)
        return tally.attach(
            out,
            one_photograph=state.single,
            people_left_out=state.people_out,
            photographs_left_out=state.photographs_out,
        )


def _write_person(
    out: Writer,
    person: str,
    count: int,
    photographs: Iterable[tuple[Photograph, PhotographResult]],
    state: _PeopleImportState,
    least: int,
    draw: Callable[[int], Sequence[str]],
) -> Record:
    """Write a person's photographs if enough are readable, and return the record.

    With `distinct`, all photographs are read before the first is written, because the splits depend on the number that
    remains. Otherwise they are written one by one, so that memory does not limit the number of photographs of a person.
    """
    before, skipped, contents = out.count, list[tuple[str, str]](), dict[str, str]()

    def usable_faces() -> Iterator[tuple[int, Photograph, Aligned]]:
        for number, (photograph, done) in enumerate(photographs):
            if fault := state.take(photograph, done):
                skipped.append((photograph.name, fault))
                state.tally.skip(photograph.name, fault)
            elif done.aligned is not None:
                yield number, photograph, done.aligned
            if state.distinct and done.digest:
                contents.setdefault(done.digest, state.seen[done.digest][0])

    # With `distinct`, copies of earlier photographs are not written, so the number is known only after reading.
    left_out = 0
    if state.distinct:
        pictures = [*usable_faces()]
        left_out = len(pictures) if len(pictures) < least else 0
        chosen = [] if left_out else pictures
        for (_, photograph, aligned), split in zip(chosen, draw(len(chosen)), strict=True):
            _add(out, photograph, aligned, split)
    else:
        splits = draw(count)
        for number, photograph, aligned in usable_faces():
            _add(out, photograph, aligned, splits[number])
    single = int(out.count == before + 1)
    state.single += single
    state.people_out += left_out > 0
    state.photographs_out += left_out
    return {"person": person, "skipped": skipped, "contents": contents, "single": single, "left_out": left_out}


def _add(out: Writer, photograph: Photograph, aligned: Aligned, split: str) -> None:
    image, points = aligned
    out.add(
        image[None],
        points=None if points is None else points[None],
        label=[1],
        species=["bonafide"],
        subject=[photograph.person],
        video=[photograph.original or photograph.name],
        frame=[0],
        split=[split],
        item=[photograph.name],
        group=[photograph.group],
        further={column: [photograph.extra.get(column, "")] for column in out.further},
    )


def _lines_of_key(listing: PhotographList, people: Sequence[str]) -> Iterator[str]:
    """Yield the people and photographs of an import, with the dates of their files."""
    for person in people:
        photographs = listing.photographs(person)
        yield f"\n{person} {len(photographs)}"
        for photograph in photographs if isinstance(photographs[0].content, WholeFile) else [photographs[0]]:
            status = photograph.content.path.stat()
            box = () if photograph.box is None else tuple(photograph.box.tolist())
            extra = sorted(photograph.extra.items())
            yield repr((photograph.name, photograph.group, *extra, status.st_size, status.st_mtime_ns, *box))


BY_POINTS = CropRecord(how="boxes", rotation=True, alignment="points")
"""The crop record of sets aligned by the dataset's own points."""


def import_people(
    layout: Layout,
    source: Path,
    destination: Path,
    options: ImportOptions,
    *,
    name: str,
    every: float = EVERY,
    progress: Progress | None = None,
) -> ImportReport:
    """Import a dataset into an identity set and return the report.

    With ``--crop face`` the largest face of each photograph is detected and aligned by its five points (eyes, nose,
    corners of the mouth). With ``--aligned`` (or ``--crop none``) the photographs are already aligned and no face is
    detected, because a detector misses some faces in tight crops. Benchmarks hold out no person. Their lists of pairs
    and templates are written next to the set; a list of pairs is named ``NAME-pairs.txt``.
    """
    crop, boxes = crop_of(options, layout), boxes_of(layout, options)
    alignment, record = _alignment(layout, crop, boxes, options)
    if options.split not in ("", *PARTS):
        raise UserError("--split", f"{options.split!r} is not a known part; choose one of {', '.join(PARTS)}")
    if layout.benchmark and subset_text(options):
        raise UserError(
            "--split" if options.split else "--people" if options.people else "--most",
            f"excludes photographs that the lists of {layout.title} need; leave it out",
        )
    scanned = layout.scan(layout, source)
    listing = choose_subset(scanned, options)
    if boxes == "dataset" and all(
        photograph.points is None for person in listing.counts for photograph in listing.photographs(person)
    ):
        raise UserError(str(source), f"contains no list with points for {layout.title}; leave out --boxes dataset")
    # Check the destinations of all lists before the import, which can take hours.
    lists = {
        list_beside(destination, PAIR_LISTS, list_name): folds for list_name, folds in sorted(listing.pairs.items())
    }
    templates = listing.templates or TemplateLists()
    for path in (*lists, *(list_beside(destination, OF_TEMPLATES, list_name) for list_name in templates.tables)):
        if path.exists():
            raise UserError(str(path), "already exists; choose another destination or remove it first")
    origin = f"people {printable(source.resolve().name)} {settings_of_people(layout, options)}"
    report = write_people(
        listing,
        source,
        destination,
        options,
        name=name,
        origin=origin + (f" order={order_digest(scanned)}" if options.split and scanned.in_order else ""),
        alignment=alignment,
        record=record,
        division=division_of(layout, options),
        distinct=layout.distinct,
        every=every,
        progress=progress,
    )
    for path, folds in lists.items():
        write_atomically(path, text_of_pairs(folds).encode())
    written = write_lists(destination, templates)
    return replace(
        report,
        summary=(*_compare_counts(listing), *listing.notes),
        lists=(
            *(f"pairs: {path} ({format_count(sum(map(len, folds)), 'pair')})" for path, folds in lists.items()),
            *(
                f"templates: {list_beside(destination, OF_TEMPLATES, list_name)} ({format_count(count, 'line')})"
                for list_name, count in written.items()
            ),
        ),
    )


def _compare_counts(listing: PhotographList) -> list[str]:
    """Return lines with the counts next to those of a complete copy, if they are known."""
    totals = zip(
        (len(listing.counts), len(listing)), listing.expected or (0, 0), ("people", "photographs"), strict=True
    )
    compared = [(count, most, noun) for count, most, noun in totals if most]
    if not compared:
        return []
    lines = [", ".join(f"{count:,} of {most:,} {noun}" for count, most, noun in compared)]
    incomplete = any(count < most for count, most, _ in compared)
    return [*lines, "this copy is incomplete: a complete one has more"] if incomplete else lines


def settings_of_people(layout: Layout, options: ImportOptions) -> str:
    """Return the end of a set's source line, which records every chosen option."""
    crop, division = crop_of(options, layout), division_of(layout, options)
    by_boxes = " boxes=dataset" if boxes_of(layout, options) == "dataset" else ""
    kind = f"kind={layout.kind} " if layout.page else ""  # sets of folders of one's own do not name their kind
    detector = f" detector={options.detector}" if options.detector != MTCNN else ""
    return f"{kind}crop={crop} {division.text}{by_boxes}{subset_text(options)}{detector}"


def division_of(layout: Layout, options: ImportOptions) -> Division:
    """Return the division of a set; benchmarks hold out no person, and published parts are not divided."""
    if options.split:
        return Division(0.0, 0.0, seed=options.seed)
    return Division(options.test, 0.0 if layout.benchmark else options.heldout, options.least, options.seed)


def crop_of(options: ImportOptions, layout: Layout) -> Crop:
    """Return the crop: none for photographs that are aligned, by the options or by the dataset."""
    if options.aligned and options.crop == "centre":
        raise UserError("--aligned", "and --crop centre contradict each other; leave one out")
    return "none" if options.aligned or layout.aligned else options.crop


def boxes_of(layout: Layout, options: ImportOptions) -> str:
    """Return the source of the boxes: always the dataset for crops in which a detector may miss the face."""
    return "dataset" if layout.by_points and crop_of(options, layout) == "face" else options.boxes


def _alignment(layout: Layout, crop: Crop, boxes: str, options: ImportOptions) -> tuple[Alignment, CropRecord]:
    """Return the alignment of crops and their record in the set."""
    if boxes == "detect":
        if crop == "centre":
            raise UserError("crop", "recognition needs aligned faces: use face, or none if they are aligned already")
        search: Search = "all" if layout.boxed else LARGEST
        record = record_of(crop, aligned=True, search=search, detector=options.detector)
        return Alignment(crop, options.size, detector=options.detector), record
    if not layout.points or crop != "face":
        fault = "requires --crop face" if layout.points else f"cannot be chosen: {layout.title} has no points"
        raise UserError("boxes", f"dataset {fault}; use detect")
    return Alignment(crop, options.size, "dataset"), BY_POINTS
