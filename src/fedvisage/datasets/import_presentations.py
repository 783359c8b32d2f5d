"""From what a scanner lists to a prepared set: one pass over the items in order of their names.

What is done is noted item by item, so that an import that is killed or interrupted goes on behind the last item when
the same command is given again. Any number of processes read and crop; one writes, in order: the bytes are the same.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.base.errors import UserError, printable
from fedvisage.base.parallel import Progress, spread
from fedvisage.base.streams import numpy_rng
from fedvisage.data.prepared import OFFICIAL
from fedvisage.data.selection import split_subjects
from fedvisage.data.writer import EVERY, Writer
from fedvisage.datasets.depth_maps import directory_of_maps
from fedvisage.datasets.frames import Boxes, Outcome, Picture, Reading, read_choice, read_item
from fedvisage.datasets.pad.folder import SCANNER
from fedvisage.datasets.pad.item import ALL, Choices, Item, Listing
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.pad.tree import walk
from fedvisage.datasets.report import DatasetReport, ImportReport, Tally
from fedvisage.faces.cropping import Crop

# What the items of an import have shown so far: contents, faults, counts; and what is noted of each.


Record = Mapping[str, Any]
"""What became of an item: what it was, its fault, and counts."""

COUNTS = ("upscaled", "lost", "own", "short", "turned", "without_box")


@dataclass
class Seen:
    """What the items have shown so far."""

    tally: Tally
    contents: dict[str, Item] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def take(self, item: Item, outcome: Outcome) -> Record:
        """Count what became of an item, and return what is to be noted; without a fault its pictures are written."""
        fault = self._known(item, outcome.digest) or outcome.fault
        record: dict[str, Any] = {"item": item.name, "digest": outcome.digest, "fault": fault}
        if not fault:
            enlarged = sum(picture.cropped.upscaled for picture in outcome.pictures)
            counts = (enlarged, outcome.lost, item.own_subject, outcome.short, outcome.turned, outcome.without_box)
            record |= {name: int(count) for name, count in zip(COUNTS, counts, strict=True)}
        self._count(item, record)
        return record

    def replay(self, item: Item, record: Record) -> None:
        """Count an item as an earlier attempt noted it."""
        assert record["item"] == item.name, "the key of an unfinished import stands for its items"
        if record["digest"]:
            self.contents.setdefault(record["digest"], item)
        self._count(item, record)

    def _count(self, item: Item, record: Record) -> None:
        for name in COUNTS:
            self.counts[name] += record.get(name, 0)
        if record["fault"]:
            self.tally.skip(item.name, record["fault"])

    def _known(self, item: Item, digest: str) -> str:
        """Say if the same content was seen before; under the other class it is a contradiction."""
        earlier = self.contents.setdefault(digest, item) if digest else item
        if earlier is item:
            return ""
        if earlier.label != item.label:
            message = f"{earlier.name!r} and {item.name!r} are the same file in contradicting classes; remove one"
            raise UserError(str(self.tally.source), message)
        return f"the same content as {earlier.name}"

    def report(self, out: Writer, scanner: Scanner, listing: Listing) -> ImportReport:
        """Put the report into the set, and return it."""
        plain = self.tally.attach(
            out,
            upscaled=self.counts["upscaled"],
            own_subjects=self.counts["own"],
            lost_frames=self.counts["lost"],
        )
        if not scanner.official:
            return plain
        found: dict[str, list[int]] = {}
        for item in listing.items:
            for place in {item.place, *({ALL} & scanner.counts.keys())}:
                found.setdefault(place, [0, 0])[1 - item.label] += 1
        report = DatasetReport(
            **vars(plain),
            kind=scanner.kind,
            found={place: (real, attacks) for place, (real, attacks) in sorted(found.items())},
            expected=dict(listing.expected or scanner.counts),
            stray=dict(sorted(listing.stray.items())),
            strangers=listing.examples,
            notes=listing.notes,
            short=self.counts["short"],
            turned=self.counts["turned"],
            without_box=self.counts["without_box"],
        )
        out.attach_report(report.json())
        return report


PIPELINE_VERSION = 1
"""Changes whenever the same files give other pixels: an unfinished import is not continued by another version."""

SHORT, PEOPLE = 8, 4
"""Where a few files stand for many: letters of values that are kinds of things, and people of each split and class."""

TURNED = "turned"
"""A further column: degrees by which a video was turned to stand upright."""


def import_items(
    scanner: Scanner,
    source: Path,
    destination: Path,
    *,
    name: str,
    size: int,
    frames: int | str = 4,
    heldout: float = 0.25,
    seed: int = 0,
    crop: Crop = "centre",
    depth: str = "auto",
    boxes: Boxes = "detect",
    max_bad: float = 0.05,
    choices: Choices | None = None,
    few: int = 0,
    workers: int = 1,
    every: float = EVERY,
    progress: Progress | None = None,
    **_: object,
) -> ImportReport:
    """Import a dataset into a prepared set and return what was imported and what was skipped.

    Of each video the `frames` are taken that are asked for (see ``importers.frames``). About a share `heldout` of the
    subjects is held out. `depth` says where depth maps come from (see ``importers.depth``), `boxes` whether faces are
    sought or cut out by boxes that came with the dataset. If more than a share `max_bad` of the files is bad, the
    import stops with a UserError. With `few`, about so many items are taken of a dataset that has more. `every` so
    many seconds what is done is made safe against a kill.
    """
    if not 0 <= heldout <= 0.99:
        raise UserError("heldout", f"must be a share from 0 to 0.99, got {heldout}")
    reading = reading_of(scanner, frames, size, crop, depth, boxes)
    choices = choices or Choices()
    listing = scanner.list(walk(source, leave_out=directory_of_maps(depth)), choices)
    listing = replace(listing, items=few_of(listing.items, few))
    splits = _splits(listing.items, heldout, seed)
    tally = Tally(source, len(listing.items) + len(listing.skipped), max_bad, list(listing.skipped))
    tally.stop_if_too_many()
    settings, seen = settings_of(reading, heldout, seed, choices, few), Seen(tally)
    origin = f"{scanner.kind} {printable(source.resolve().name)} {settings}"
    out = Writer(
        destination, name=name, size=size, source=origin, depth=reading.has_depth, points=reading.points,
        crop=reading.record, further=_columns(scanner, listing.items), every=every,
        key=_key(f"{origin} {reading.record!r}", name, listing.items),
    )  # fmt: skip
    with out, closing(_outcomes(out, seen, listing.items, reading, workers, progress)) as outcomes:
        for item, outcome in outcomes:
            for picture in outcome.pictures:
                _add(out, item, picture, splits[item.subject], outcome.turned)
        return seen.report(out, scanner, listing)


def _outcomes(
    out: Writer, seen: Seen, items: Sequence[Item], reading: Reading, workers: int, progress: Progress | None
) -> Generator[tuple[Item, Outcome], None, None]:
    """Read the items behind those that were done before; yield what is to be written, and note it when it is."""
    for item, noted in zip(items, out.done, strict=False):
        seen.replay(item, noted)
    rest = items[len(out.done) :]
    with closing(spread(partial(read_item, reading=reading), rest, workers, torch=False)) as outcomes:
        for done, (item, outcome) in enumerate(zip(rest, outcomes, strict=True), len(out.done) + 1):
            record = seen.take(item, outcome)
            if not record["fault"]:
                yield item, outcome
            out.note(**record)
            if progress:
                progress(done, len(items))


def few_of(items: Sequence[Item], few: int) -> Sequence[Item]:
    """Keep about so many items: of each split and class some people, and each pair of values of further columns.

    What is left is filled with more of the people who were taken, so that they have all that there is of them.
    """
    if not 0 < few < len(items):
        return items
    seen, kept = set[tuple[object, ...]](), dict[str, Item]()
    people: dict[tuple[str | None, int], set[str]] = defaultdict(set)
    for item in items:
        said = [("", item.species), *((name, value) for name, value in item.extra.items() if len(value) < SHORT)]
        signs = {(item.split, item.label, one, other) for one in said for other in said}
        known = people[item.split, item.label]
        if not signs <= seen or (len(known) < PEOPLE and item.subject not in known):
            seen |= signs
            known.add(item.subject)
            kept[item.name] = item
    taken = {item.subject for item in kept.values()}
    more = (item for item in items if item.subject in taken and item.name not in kept)
    kept |= {item.name: item for item in islice(more, max(0, few - len(kept)))}
    return [item for item in items if item.name in kept]


def _splits(items: Sequence[Item], heldout: float, seed: int) -> dict[str, str]:
    subjects, labels = [item.subject for item in items], [item.label for item in items]
    return split_subjects(subjects, labels, heldout, numpy_rng(seed, "import", "heldout"))


def _add(out: Writer, item: Item, picture: Picture, split: str, turned: bool) -> None:
    points, depth = picture.cropped.points, picture.depth
    known = {OFFICIAL: item.split or "", **item.extra, TURNED: "180" if turned else ""}
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
        further={column: [known.get(column, "")] for column in out.further},
    )


def reading_of(scanner: Scanner, frames: int | str, size: int, crop: Crop, depth: str, boxes: Boxes) -> Reading:
    """Return how items of a dataset become pictures; what cannot be had of it raises UserError."""
    if boxes not in ("detect", "dataset"):
        raise UserError("boxes", f"must be detect or dataset, got {boxes!r}")
    if boxes == "dataset" and scanner.boxes is None:
        raise UserError("boxes", f"{scanner.title} has no boxes that are read; use detect")
    if boxes == "dataset" and (crop != "face" or depth == "canonical"):
        raise UserError(
            "boxes", "dataset goes with --crop face, and without canonical depth maps: boxes have no points"
        )
    form = scanner.boxes.form if scanner.boxes else "sides"
    return Reading(read_choice(frames), size, crop, depth, boxes, form, scanner.turned)


def _columns(scanner: Scanner, items: Sequence[Item]) -> tuple[str, ...]:
    """Return the further columns of a dataset's sets; frames of other datasets have the columns of theirs alone."""
    if scanner.of:
        said = {column for item in items for column in item.extra}
        return (OFFICIAL, *(column for column in scanner.columns if column in said))
    if not scanner.official:
        return scanner.columns
    return (OFFICIAL, *scanner.columns, *((TURNED,) if scanner.turned else ()))


def settings_of(reading: Reading, heldout: float, seed: int, choices: Choices, few: int = 0) -> str:
    """Return how the line ends that says in a set how it was made: all that was chosen."""
    maps = printable(Path(reading.depth).resolve().name)
    line = f"crop={reading.crop} depth={maps} frames={reading.frames.text} heldout={heldout} seed={seed}"
    line += " boxes=dataset" if reading.boxes == "dataset" else ""
    line += " enroll" if choices.enroll else ""
    line += " colour=bgr" if choices.colour == "bgr" else ""
    line += " labels=fedsis-released" if choices.released else ""
    line += f" few={few}" if few else ""
    return line


def _key(origin: str, name: str, items: Sequence[Item]) -> str:
    """Return what an unfinished import is known by: everything that decides the set's bytes, and the files' dates."""
    digest = hashlib.sha256(f"{PIPELINE_VERSION}\n{origin}\n{name}\n".encode(errors="surrogatepass"))
    for item in items:
        status = item.path.stat()
        line = (
            item.name,
            item.species,
            item.subject,
            item.split,
            *item.extra.items(),
            status.st_size,
            status.st_mtime_ns,
        )
        digest.update(repr(line).encode(errors="surrogateescape"))
    return f"import-{digest.hexdigest()[:16]}"


# Imports any folder of images and videos: see ``datasets.scanners.folder`` for the layout.


__all__ = ["Progress", "import_folder"]

import_folder = partial(import_items, SCANNER)
"""Import a folder into a prepared set; what it takes is what ``importers.pipeline.import_items`` takes."""
