"""Import datasets as prepared sets, one or all below a folder, or render sets, and report the result."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, in_steps
from fedvisage.data.prepared import SET, PreparedSet
from fedvisage.datasets.catalogue import LAYOUTS, SCANNERS, importer_of
from fedvisage.datasets.finding import find_datasets
from fedvisage.datasets.options import ImportOptions, PeopleOptions, SynthesisOptions
from fedvisage.datasets.show import shortcuts_in, show_set

ALL_DATASETS = "all"
"""The kind that selects every dataset below a folder."""

LEAST_IMAGES = 100
"""Minimum number of images per class for an import to check for shortcuts."""


def _import_all(root: Path, destination: Path, say: Say, options: ImportOptions) -> list[str]:
    """Import each known dataset below a folder into a set with its name; a failure does not stop the others."""
    below = find_datasets(root)
    lines, failed = [f"unknown, ignored: {name}" for name in below.unknown], []
    for dataset in below.datasets:
        kind, target = dataset.kind, destination / dataset.name
        if (target / SET).is_file():
            lines.append(f"{dataset.name}: already imported")
            continue
        # Only the options that apply to this kind.
        people = kind in LAYOUTS
        boxes = LAYOUTS[kind].points if people else SCANNERS[kind].boxes is not None
        applicable = replace(
            options,
            enroll=options.enroll and not people and SCANNERS[kind].enrolment,
            labels="",
            of="",
            colour="",
            boxes=options.boxes if boxes else "detect",
            crop="face" if people and options.crop == "centre" else options.crop,  # recognition needs faces aligned
        )
        try:
            report = import_dataset(kind, dataset.source, target, say, name=dataset.name, options=applicable)
        except UserError as error:
            failed.append(f"{dataset.name}: {error}")
            continue
        lines += [f"{dataset.name}: {report[0]}", *(f"  {line}" for line in report[1:])]
    if failed:
        for line in lines:
            say(line)
        message = f"{len(failed)} of {len(below.datasets)} datasets were not imported: {'; '.join(failed)}"
        raise UserError(str(root), message)
    return lines


def import_dataset(
    kind: str, source: Path, destination: Path, say: Say, *, name: str, options: ImportOptions
) -> list[str]:
    """Import a dataset, or all known ones below a folder; return the lines of the report."""
    check_disjoint(source, destination)
    if options.aligned and (kind in SCANNERS or kind == ALL_DATASETS):
        raise UserError("--aligned", "requires photographs of people, for recognition; leave it out for this kind")
    for option, value in (("--split", options.split), ("--people", options.people), ("--most", options.most)):
        if value and kind not in LAYOUTS:
            raise UserError(option, f"requires a known dataset of people, such as rec, not {kind}; leave it out")
    if kind == ALL_DATASETS:
        return _import_all(source, destination, say, options)
    importer = importer_of(kind)
    if kind not in SCANNERS and kind not in LAYOUTS and not options.frames.isdecimal():
        raise UserError("--frames", f"must be a number for this kind, got {options.frames!r}")
    with in_steps(f"importing {source.name}", say) as progress:
        report = importer(source, destination, options, name=name or source.resolve().name, progress=progress)
    # Warn if a single number per picture separates the classes; few images do not show it.
    enough = min(report.bona_fide, report.images - report.bona_fide) >= LEAST_IMAGES
    return [*report.lines(), *(shortcuts_in(PreparedSet.open(destination)).warnings() if enough else ())]


def check_disjoint(source: Path, destination: Path) -> None:
    """Refuse a set inside its source, which the next import would read as part of it, and the reverse."""
    inner, outer = destination.resolve(), source.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise UserError(str(destination), f"and {source} contain each other; write the set to another directory")


# Rendered sets, for ``fedvisage data synth``.


def synthesise_set(destination: Path, options: SynthesisOptions, say: Say) -> list[str]:
    """Render a set of people and presentation attacks."""
    # Imported here because importing and showing sets need no renderer.
    from fedvisage.datasets.sources import render_set
    from fedvisage.render.sets import Synthesis, check_selection, read_names, read_species

    spec = Synthesis(
        options.domain,
        size=options.size,
        subjects=options.subjects,
        videos=options.videos,
        frames=options.frames,
        seed=options.seed,
        heldout=options.heldout,
        species=read_species(options.species) if options.species else None,
        generation=options.generation,
        media=read_names(options.media) if options.media else None,
        cameras=read_names(options.cameras) if options.cameras else None,
    )
    with in_steps(f"rendering {options.domain}", say) as progress:
        render_set(check_selection(spec), destination, workers=options.workers, progress=progress)
    return show_set(destination)


def synthesise_people(destination: Path, options: PeopleOptions, say: Say) -> list[str]:
    """Render an identity set."""
    from fedvisage.render.identities import Identities, render_identities

    spec = Identities(**{field.name: getattr(options, field.name) for field in fields(Identities)})
    with in_steps("rendering people", say) as progress:
        render_identities(spec, destination, workers=options.workers, progress=progress)
    return show_set(destination)
