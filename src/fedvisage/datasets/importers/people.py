"""Imports a dataset of people that is known into an identity set, and writes its lists of pairs beside the set.

A dataset is taken as its authors made it: a photograph that is there twice is taken twice. Crops that were delivered
aligned are taken on trust; in other photographs the face is found, or aligned by the five points that came with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedvisage.data.beside import OF_TEMPLATES, PAIRS, list_beside
from fedvisage.data.crops import CropRecord
from fedvisage.data.journal import EVERY
from fedvisage.data.pairs import text_of_pairs
from fedvisage.data.templates import TemplateLists, write_lists
from fedvisage.datasets.importers.albums import Division, IdentityReport, write_people
from fedvisage.datasets.importers.cropping import LARGEST, Crop, record_of
from fedvisage.datasets.importers.folder import Progress
from fedvisage.datasets.importers.report import printable
from fedvisage.datasets.importers.shots import Alignment, alignment_of
from fedvisage.datasets.people.album import Album
from fedvisage.datasets.people.choosing import PARTS, Choice, choose, order_digest
from fedvisage.datasets.people.layout import Layout
from fedvisage.errors import UserError
from fedvisage.files import write_atomically
from fedvisage.progress import counted

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
        list_beside(destination, PAIRS, which): text_of_pairs(folds) for which, folds in sorted(album.pairs.items())
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
