"""Import a scanner's listing into a prepared set: one pass over the items in order of their names.

Each finished item is recorded, so that the same command resumes a killed or interrupted import after the last item. Any
number of processes read and crop; one process writes in order, so the bytes are always the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.base.errors import UserError, printable
from fedvisage.base.parallel import Progress, map_in_order
from fedvisage.base.streams import numpy_rng
from fedvisage.data.left_out import COPY
from fedvisage.data.partial_set import EVERY, import_key
from fedvisage.data.rows import OFFICIAL
from fedvisage.data.splits import split_subjects
from fedvisage.data.writer import Writer
from fedvisage.datasets.dataset import ALL, Item, Listing
from fedvisage.datasets.depth_maps import directory_of_maps
from fedvisage.datasets.frames import ItemResult, ReadSettings, read_choice, read_item
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.report import ImportReport, Tally
from fedvisage.datasets.tree import walk
from fedvisage.faces.cropping import MARGIN, MTCNN

# The state of an import.

Record = Mapping[str, Any]
"""The result for one item: its name, its digest, its fault, and counts."""

COUNTS = ("upscaled", "lost", "own", "short", "turned", "without_box", "close")


@dataclass
class _ImportState:
    """Contents and counts of the items read so far."""

    tally: Tally
    contents: dict[str, Item] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    answered: set[str] = field(default_factory=set)
    unanswered: dict[str, str] = field(default_factory=dict)
    """Species of the videos, or single pictures, without a usable face."""

    def take(self, item: Item, outcome: ItemResult) -> Record:
        """Count an item and return its record; its pictures are written only if the record has no fault."""
        fault = outcome.fault
        earlier = self.contents.setdefault(outcome.digest, item) if outcome.digest else item
        if earlier.label != item.label:
            message = f"{earlier.name!r} and {item.name!r} are the same file in contradicting classes; remove one"
            raise UserError(str(self.tally.source), message)
        if earlier is not item:
            fault = f"{COPY} {earlier.name}"
        record: dict[str, Any] = {"item": item.name, "digest": outcome.digest, "fault": fault}
        record["unanswered"] = outcome.unanswered and earlier is item
        if not fault:
            record |= {
                "upscaled": sum(picture.cropped.upscaled for picture in outcome.pictures),
                "lost": outcome.lost,
                "own": int(item.own_subject),
                "short": int(outcome.short),
                "turned": int(outcome.turned > 0),
                "without_box": outcome.without_box,
                "close": sum(picture.cropped.close for picture in outcome.pictures),
            }
        self._count(item, record)
        return record

    def replay(self, item: Item, record: Record) -> None:
        """Count an item from the record of an earlier attempt."""
        assert record["item"] == item.name, "the key of an unfinished import stands for its items"
        if record["digest"]:
            self.contents.setdefault(record["digest"], item)
        self._count(item, record)

    def _count(self, item: Item, record: Record) -> None:
        for name in COUNTS:
            self.counts[name] += record.get(name, 0)
        if not record["fault"]:
            self.answered.add(item.video)
        elif record.get("unanswered"):
            self.unanswered[item.video] = item.species
        if record["fault"]:
            self.tally.skip(item.name, record["fault"])

    def report(self, out: Writer, scanner: Scanner, listing: Listing) -> ImportReport:
        """Attach the report to the set, and return it."""
        unanswered = Counter(species for video, species in self.unanswered.items() if video not in self.answered)
        attach = partial(
            self.tally.attach,
            out,
            unanswered=dict(sorted(unanswered.items())),
            upscaled=self.counts["upscaled"],
            own_subjects=self.counts["own"],
            lost_frames=self.counts["lost"],
            little_context=self.counts["close"] or None,  # absent from sets whose crops need no more context
            turned=self.counts["turned"] or None,
        )
        if not scanner.official:
            return attach()
        # Published counts of some datasets are totals over all splits, so these items also count under ALL.
        counts_by_place: dict[str, list[int]] = {}
        for item in listing.items:
            for place in {item.place, *({ALL} & scanner.counts.keys())}:
                counts_by_place.setdefault(place, [0, 0])[1 - item.label] += 1
        return attach(
            kind=scanner.kind,
            found={place: (bona_fide, attacks) for place, (bona_fide, attacks) in sorted(counts_by_place.items())},
            expected=dict(listing.expected or scanner.counts),
            stray=dict(sorted(listing.stray.items())),
            strangers=listing.examples,
            notes=listing.notes,
            short=self.counts["short"],
            without_box=self.counts["without_box"],
        )


PIPELINE_VERSION = 2
"""Changes whenever the same files give different pixels, so that no import resumes one of another version."""

SHORT, PEOPLE = 8, 4
"""Limits of small imports: length of column values that count as categories, and people per split and class."""

TURNED = "turned"
"""An additional column: degrees by which a video or picture was turned upright."""
CONTEXT = "context"
"""An additional column of wide crops: their side in per cent of the longer side of the face's box, in steps of 50."""


def import_items(
    scanner: Scanner,
    source: Path,
    destination: Path,
    options: ImportOptions,
    *,
    name: str,
    every: float = EVERY,
    progress: Progress | None = None,
) -> ImportReport:
    """Import a dataset into a prepared set and return the report.

    Every `every` seconds, the finished items are made safe against a kill.
    """
    if not 0 <= options.heldout <= 0.99:
        raise UserError("heldout", f"must be in [0, 0.99], got {options.heldout}")
    reading = read_settings_of(scanner, options)
    listing = scanner.list(walk(source, leave_out=directory_of_maps(options.depth)), options)
    listing = replace(listing, items=limit_items(listing.items, options.few))
    subjects, labels = [item.subject for item in listing.items], [item.label for item in listing.items]
    splits = split_subjects(subjects, labels, options.heldout, numpy_rng(options.seed, "import", "heldout"))
    tally = Tally(source, len(listing.items) + len(listing.skipped), options.max_bad, list(listing.skipped))
    tally.stop_if_too_many()
    state = _ImportState(tally)
    origin = f"{scanner.kind} {printable(source.resolve().name)} {settings_of(reading, options)}"
    beginning = f"{PIPELINE_VERSION}\n{origin} {reading.record!r}\n{name}\n"
    out = Writer(
        destination,
        name=name,
        size=options.size,
        source=origin,
        depth=reading.has_depth,
        points=reading.points,
        crop=reading.record,
        further_margins=reading.margins[1:],
        further=_columns(scanner, listing.items) + ((CONTEXT,) if reading.shows_context else ()),
        every=every,
        key=import_key(beginning.encode(errors="surrogatepass"), _lines_of_key(listing.items)),
    )
    read = partial(read_item, reading=reading)
    with out:
        # Count the items of an earlier attempt, and read those after them.
        for item, record_before in zip(listing.items, out.done, strict=False):
            state.replay(item, record_before)
        remaining = listing.items[len(out.done) :]
        with closing(map_in_order(read, remaining, options.workers, torch=False)) as outcomes:
            for done, (item, outcome) in enumerate(zip(remaining, outcomes, strict=True), len(out.done) + 1):
                record = state.take(item, outcome)
                if not record["fault"]:
                    _write_pictures(out, item, outcome, splits[item.subject])
                out.note(**record)
                if progress:
                    progress(done, len(listing.items))
        return state.report(out, scanner, listing)


def _write_pictures(out: Writer, item: Item, outcome: ItemResult, split: str) -> None:
    values = {OFFICIAL: item.split or "", **item.extra, TURNED: str(outcome.turned or "")}
    for picture in outcome.pictures:
        points, depth = picture.cropped.points, picture.depth
        values[CONTEXT] = str(50 * int(2 * picture.cropped.context))
        out.add(
            picture.cropped.image[np.newaxis],
            label=[item.label],
            species=[item.species],
            subject=[item.subject],
            video=[item.video],
            frame=[picture.frame],
            split=[split],
            item=[picture.item],
            depth=None if depth is None else depth[np.newaxis],
            points=None if points is None else points[np.newaxis],
            at_further_margins=[image[np.newaxis] for image in picture.cropped.further],
            further={column: [values.get(column, "")] for column in out.further},
        )


def limit_items(items: Sequence[Item], few: int) -> Sequence[Item]:
    """Keep about `few` items: some people of each split and class, and each pair of values of the additional columns.

    More items of the chosen people fill the remainder, so that these people are as complete as possible.
    """
    if not 0 < few < len(items):
        return items
    covered, kept = set[tuple[object, ...]](), dict[str, Item]()
    people: dict[tuple[str | None, int], set[str]] = defaultdict(set)
    for item in items:
        values = [("", item.species), *((name, value) for name, value in item.extra.items() if len(value) < SHORT)]
        combinations = {(item.split, item.label, first, second) for first in values for second in values}
        people_of_class = people[item.split, item.label]
        if not combinations <= covered or (len(people_of_class) < PEOPLE and item.subject not in people_of_class):
            covered |= combinations
            people_of_class.add(item.subject)
            kept[item.name] = item
    taken = {item.subject for item in kept.values()}
    more = (item for item in items if item.subject in taken and item.name not in kept)
    kept |= {item.name: item for item in islice(more, max(0, few - len(kept)))}
    return [item for item in items if item.name in kept]


def read_settings_of(scanner: Scanner, options: ImportOptions) -> ReadSettings:
    """Return how items of a dataset become pictures; raise UserError for options that the dataset does not support."""
    if options.boxes == "dataset" and scanner.boxes is None:
        raise UserError("boxes", f"fedvisage does not read boxes of {scanner.title}; use detect")
    if options.boxes == "dataset" and (options.crop != "face" or options.depth == "canonical"):
        raise UserError(
            "boxes", "dataset requires --crop face, and excludes canonical depth maps: boxes have no points"
        )
    if options.pad != "none" and directory_of_maps(options.depth) is not None:
        raise UserError("--pad", "excludes a directory of depth maps, which end where the pictures end; leave it out")
    return ReadSettings(
        read_choice(options.frames),
        options.size,
        options.crop,
        options.depth,
        options.boxes,
        form=scanner.boxes.form if scanner.boxes else "sides",
        turned=scanner.turned,
        margins=options.margins,
        padding=options.pad,
        detector=options.detector,
    )


def _columns(scanner: Scanner, items: Sequence[Item]) -> tuple[str, ...]:
    """Return the additional columns of a set; frames of other datasets have only the columns of theirs."""
    if scanner.of:
        present = {column for item in items for column in item.extra}
        return (OFFICIAL, *(column for column in scanner.columns if column in present))
    if not scanner.official:
        return scanner.columns
    return (OFFICIAL, *scanner.columns, *((TURNED,) if scanner.turned else ()))


def settings_of(reading: ReadSettings, options: ImportOptions) -> str:
    """Return the end of a set's source line, which records every chosen option."""
    maps, frames = printable(Path(reading.depth).resolve().name), reading.frames.text
    line = f"crop={reading.crop} depth={maps} frames={frames} heldout={options.heldout} seed={options.seed}"
    margins = ",".join(f"{margin:g}" for margin in reading.margins)
    line += f" margin={margins}" if reading.margins != (MARGIN,) else ""
    line += f" detector={reading.detector}" if reading.detector != MTCNN else ""
    line += f" pad={reading.padding}" if reading.padding != "none" else ""
    line += " boxes=dataset" if reading.boxes == "dataset" else ""
    line += " enroll" if options.enroll else ""
    line += " colour=bgr" if options.colour == "bgr" else ""
    line += " labels=fedsis-released" if options.released else ""
    line += f" few={options.few}" if options.few else ""
    return line


def _lines_of_key(items: Sequence[Item]) -> Iterator[str]:
    """Yield what decides the bytes of each item, with the date of its file."""
    for item in items:
        status = item.path.stat()
        columns = (item.species, item.subject, item.split, *item.extra.items())
        yield repr((item.name, *columns, status.st_size, status.st_mtime_ns))
