"""What the ``fedvisage data`` commands do; each returns what it has to say in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedvisage import extensions
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.everything import import_all
from fedvisage.datasets.finding import Found
from fedvisage.datasets.importers.cropping import Crop
from fedvisage.datasets.importers.identities import import_identities
from fedvisage.datasets.importers.people import import_people
from fedvisage.datasets.importers.pipeline import import_items
from fedvisage.datasets.importers.report import ImportReport
from fedvisage.datasets.people.catalogue import LAYOUTS
from fedvisage.datasets.people.layout import Layout
from fedvisage.datasets.scanners.catalogue import SCANNERS
from fedvisage.datasets.scanners.item import Choices
from fedvisage.datasets.scanners.scanner import Scanner
from fedvisage.datasets.show import contact_sheet, describe, warnings_about
from fedvisage.errors import UserError
from fedvisage.progress import Say, counted, in_steps
from fedvisage.workers.spread import Progress

if TYPE_CHECKING:
    from fedvisage.datasets.shortcuts import Shortcuts


ENOUGH = 100
"""Images of each class, from which on an import looks for shortcuts."""


class Importer(Protocol):
    """Imports a directory into a prepared set; what does not apply to its layout an importer ignores."""

    def __call__(  # noqa: D102
        self, source: Path, destination: Path, *, name: str, size: int, frames: int, crop: Crop, depth: str,
        heldout: float, test: float, least: int, max_bad: float, seed: int, workers: int, progress: Progress,
    ) -> ImportReport: ...  # fmt: skip


IMPORTERS: dict[str, Importer] = {"identities": import_identities}
"""Layouts that are no scanner's, with what imports them."""

RELEASED = "fedsis-released"
"""Labels with the mistake of the lists that were released with FedSIS."""

EVERYTHING = "all"
"""Stands for every dataset below a folder."""


@dataclass(frozen=True)
class Importing:
    """How a dataset is imported; what does not apply to its kind is not looked at."""

    size: int = 256
    frames: str = "10"
    crop: str = "face"
    depth: str = "auto"
    boxes: str = "detect"
    heldout: float = 0.25
    test: float = 0.4
    least: int = 1
    max_bad: float = 0.05
    seed: int = 0
    workers: int = 1
    enroll: bool = False
    labels: str = ""
    of: str = ""
    colour: str = ""
    aligned: bool = False
    split: str = ""
    people: int = 0
    most: int = 0
    few: int = 0
    """About so many videos or images of each dataset, for those who try something; 0 is all."""


def synthesise_set(
    destination: Path,
    say: Say,
    *,
    domain: str,
    size: int,
    subjects: int | None,
    videos: int | None,
    frames: int,
    seed: int,
    heldout: float,
    species: str,
    generation: int = 1,
    media: str = "",
    cameras: str = "",
    photos: Path | None,
    crop: str,
    max_bad: float,
    workers: int,
) -> list[str]:
    """Render a set, or simulate attacks on a folder of photos."""
    # Here, because importing and showing sets need no renderer.
    from fedvisage.datasets.rendered.folder import synthesise_from
    from fedvisage.datasets.rendered.retaken import render_set
    from fedvisage.datasets.rendered.specification import Synthesis, of_rendered_people, read_names, read_species

    spec = Synthesis(domain, size=size, subjects=subjects, videos=videos, frames=frames, seed=seed, heldout=heldout,
                     species=read_species(species) if species else None,
                     generation=generation if photos is None else 1,
                     media=read_names(media) if media else None,
                     cameras=read_names(cameras) if cameras else None)  # fmt: skip
    if photos is None:
        with in_steps(f"rendering {domain}", say) as progress:
            render_set(of_rendered_people(spec), destination, workers=workers, progress=progress)
        return show_set(destination)
    _check_apart(photos, destination)
    with in_steps(f"reading {photos.name}", say) as reading, in_steps(f"rendering {domain}", say) as progress:
        report = synthesise_from(
            photos,
            spec,
            destination,
            crop=crop,  # type: ignore[arg-type]  # the cropper refuses other words itself
            max_bad=max_bad,
            workers=workers,
            reading=reading,
            progress=progress,
        )
    return [*report.lines(), *_shortcuts_of_import(destination, report), *show_set(destination)]


def synthesise_people(
    destination: Path,
    say: Say,
    *,
    identities: int,
    images: int,
    size: int,
    first: int,
    seed: int,
    test: float,
    heldout: float,
    group: int | None,
    workers: int,
) -> list[str]:
    """Render an identity set."""
    from fedvisage.datasets.rendered.identities import Identities, render_identities

    spec = Identities(identities, images, size, first, seed, test, heldout, group)
    with in_steps("rendering people", say) as progress:
        render_identities(spec, destination, workers=workers, progress=progress)
    return show_set(destination)


def import_dataset(kind: str, source: Path, destination: Path, say: Say, *, name: str, options: Importing) -> list[str]:
    """Import a dataset, or all that are known below a folder; return what was imported and what was skipped."""
    _check_apart(source, destination)
    if options.aligned and (kind in SCANNERS or kind == EVERYTHING):
        raise UserError("--aligned", "is for photographs of people, to be recognised; leave it out for this kind")
    for option, value in (("--split", options.split), ("--people", options.people), ("--most", options.most)):
        if value and kind not in LAYOUTS:
            raise UserError(option, f"is for known datasets of people such as rec, and not for {kind}; leave it out")
    if kind == EVERYTHING:
        return import_all(source, destination, say, partial(_import_found, say=say, options=options))
    with in_steps(f"importing {source.name}", say) as progress:
        report = _import_one(kind, source, destination, progress, name or source.resolve().name, options)
    return [*report.lines(), *_shortcuts_of_import(destination, report)]


def _shortcuts_of_import(destination: Path, report: ImportReport) -> list[str]:
    """Warn of a set whose classes a single number of a picture separates; few images say nothing."""
    if min(report.bona_fide, report.images - report.bona_fide) < ENOUGH:
        return []
    return _shortcuts(PreparedSet.open(destination)).warnings()


def _import_one(
    kind: str, source: Path, destination: Path, progress: Progress, name: str, options: Importing
) -> ImportReport:
    scanner = SCANNERS.get(kind)
    if scanner is not None:
        choices, settings = choices_of(options), asdict(options)
        return import_items(scanner, source, destination, name=name, choices=choices, progress=progress, **settings)
    if options.aligned and options.crop == "centre":
        raise UserError("--aligned", "and --crop centre contradict each other; leave one out")
    options = replace(options, crop="none") if options.aligned else options
    if (layout := LAYOUTS.get(kind)) is not None:
        return import_people(layout, source, destination, name=name, progress=progress, **asdict(options))
    return _importer(kind)(
        source,
        destination,
        name=name,
        size=options.size,
        frames=_count(options.frames),
        heldout=options.heldout,
        test=options.test,
        least=options.least,
        seed=options.seed,
        workers=options.workers,
        crop=options.crop,  # type: ignore[arg-type]  # the importer refuses other words itself
        depth=options.depth,
        max_bad=options.max_bad,
        progress=progress,
    )


def _import_found(one: Found, target: Path, *, say: Say, options: Importing) -> list[str]:
    """Import a dataset that was found, with those of the options that it has."""
    enrolled = options.enroll and one.kind in SCANNERS and SCANNERS[one.kind].enrolment
    people = one.kind in LAYOUTS
    boxes = LAYOUTS[one.kind].points if people else SCANNERS[one.kind].boxes is not None
    own = replace(
        options, enroll=enrolled, labels="", of="", colour="", boxes=options.boxes if boxes else "detect",
        crop="face" if people and options.crop == "centre" else options.crop,  # recognition needs faces aligned
    )  # fmt: skip
    return import_dataset(one.kind, one.source, target, say, name=one.name, options=own)


def _importer(kind: str) -> Importer:
    importer: Importer | None = IMPORTERS.get(kind) or extensions.load("datasets", kind)
    if importer is None:
        raise UserError("KIND", f"{kind!r} is no known layout; choose one of {', '.join(all_kinds())}")
    return importer


def choices_of(options: Importing) -> Choices:
    """Return what a scanner is told of the options."""
    released = options.labels == RELEASED
    live = None if released else _live(options.labels)
    return Choices(options.enroll, live, options.of or None, options.colour or None, released)


def _live(labels: str) -> str | None:
    """Read what lists call bona fide."""
    if not labels:
        return None
    word, _, value = labels.partition("=")
    if word != "live" or not value:
        raise UserError("--labels", f"must say what is bona fide, such as live=0, or be {RELEASED}; got {labels!r}")
    return value


def _count(frames: str) -> int:
    """Read the number of frames for an importer that knows no places."""
    if not frames.isdecimal():
        raise UserError("--frames", f"must be a number for this kind, got {frames!r}")
    return int(frames)


def all_kinds() -> list[str]:
    """Return the name of every layout that can be imported."""
    return [*SCANNERS, *LAYOUTS, *IMPORTERS, *extensions.names("datasets")]


def describe_kinds(kind: str) -> list[str]:
    """Return what each dataset expects, or one of them."""
    if kind in IMPORTERS or kind in extensions.names("datasets"):
        return [f"{kind}: an importer of its own; see its documentation"]
    lines = []
    everything: list[Scanner | Layout] = [*SCANNERS.values(), *LAYOUTS.values()]
    for one in [dataset_of(kind)] if kind else everything:
        lines += [f"{one.kind}: {one.title}", *(f"    {line}" for line in one.expects.splitlines())]
        lines += [f"    {line}" for line in one.whole_copy]
        lines += [f"    asked for at {one.page}"] if one.page else []
    others = [name for name in all_kinds() if name not in SCANNERS and name not in LAYOUTS]
    return lines + ([] if kind else [f"also: {', '.join(others)}"])


def dataset_of(kind: str) -> Scanner | Layout:
    """Return the dataset that is called so."""
    dataset: Scanner | Layout | None = SCANNERS.get(kind) or LAYOUTS.get(kind)
    if dataset is None:
        raise UserError("KIND", f"{kind!r} is no known dataset; choose one of {', '.join([*SCANNERS, *LAYOUTS])}")
    return dataset


def pretend_dataset(kind: str, directory: Path, subjects: int = 0, people: int = 0) -> list[str]:
    """Write a small copy of a dataset with rendered faces, with more subjects than it needs, or with so many people."""
    from fedvisage.datasets.pretend import pretend  # which needs the renderer

    dataset = dataset_of(kind)
    count = pretend(dataset, directory, subjects, people)
    return [f"{counted(count, 'file')} in the layout of {dataset.title}: fedvisage data import {kind} {directory} SET"]


def show_set(directory: Path, *, sheet: Path | None = None, verify: bool = False, shortcuts: bool = False) -> list[str]:
    """Return what a set holds, line by line; write a contact sheet, and measure shortcuts, when asked to."""
    if sheet is not None:
        _check_sheet(sheet)
    prepared = PreparedSet.open(directory, verify=verify)
    lines = [
        f"{prepared.name}: {counted(len(prepared), 'image')} of {prepared.size}×{prepared.size}, {prepared.source}",
        *([f"crops: {prepared.crop}"] if prepared.crop is not None else []),
        *describe(prepared),
        *warnings_about(prepared),
    ]
    if shortcuts:
        lines += _shortcuts(prepared).lines()
    if sheet is not None:
        contact_sheet(prepared).save(sheet)
        lines.append(f"contact sheet: {sheet}")
    return lines


def _shortcuts(prepared: PreparedSet) -> Shortcuts:
    """Measure a set of attacks."""
    if prepared.rows.group is not None:
        raise UserError(
            str(prepared.path), "is an identity set without attacks; --shortcuts is for sets with both classes"
        )
    from fedvisage.datasets.shortcuts import shortcuts_of  # which needs scikit-learn, a second of loading

    return shortcuts_of(prepared)


def _check_apart(source: Path, destination: Path) -> None:
    """Refuse a set within its source, which the next import would take for a part of it, and the reverse."""
    inner, outer = destination.resolve(), source.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise UserError(str(destination), f"and {source} lie within each other; write the set somewhere else")


def _check_sheet(sheet: Path) -> None:
    """Refuse what cannot be written, before a large set is read."""
    if sheet.suffix.lower() != ".png":
        raise UserError("--sheet", f"{str(sheet)!r} must end in .png")
    if sheet.is_dir() or not sheet.parent.is_dir():
        raise UserError("--sheet", f"{str(sheet)!r} cannot be written; give a file name in a directory that exists")
