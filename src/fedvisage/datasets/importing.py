"""Import datasets as prepared sets, one or all below a folder, or render sets, and report the result."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, in_steps
from fedvisage.data.prepared import SET, Manifest, PreparedSet
from fedvisage.datasets.catalogue import LAYOUTS, SCANNERS, Importer, dataset_of, load_dataset
from fedvisage.datasets.finding import find_datasets
from fedvisage.datasets.frames import ReadSettings
from fedvisage.datasets.import_people import import_people, settings_of_people
from fedvisage.datasets.import_presentations import import_items, read_settings_of, settings_of
from fedvisage.datasets.options import ImportOptions, PeopleOptions, SynthesisOptions
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.people.folders import IDENTITIES
from fedvisage.datasets.people.layout import Layout
from fedvisage.datasets.show import shortcuts_of, show_set

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
    dataset = load_dataset(kind)
    importer: Importer
    if isinstance(dataset, Scanner):
        importer = partial(import_items, dataset)
    elif isinstance(dataset, Layout):
        importer = partial(import_people, dataset)
    else:
        importer = dataset
    # Published datasets of people ignore this option, like others that do not apply to them.
    if (dataset is IDENTITIES or importer is dataset) and not options.frames.isdecimal():
        raise UserError("--frames", f"must be a number for this kind, got {options.frames!r}")
    with in_steps(f"importing {source.name}", say) as progress:
        report = importer(source, destination, options, name=name or source.resolve().name, progress=progress)
    # Warn if a single number per picture separates the classes; few images do not show it.
    enough = min(report.bona_fide, report.images - report.bona_fide) >= LEAST_IMAGES
    return [*report.lines(), *(shortcuts_of(PreparedSet.open(destination)).warnings() if enough else ())]


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


# The specification of an imported set in a recipe or study: the command without directories.

ORDER = " order="
_LATER = ("size", "workers")
"""Options that come from the recipe or the machine: an import string may have them, without effect."""

_DEFAULTS: dict[str, Any] = {option.name: option.default for option in fields(ImportOptions) if option.name != "few"}


@dataclass(frozen=True)
class ImportSpec:
    """A dataset with its import options; `words` are the options as written."""

    kind: str
    options: ImportOptions
    words: str = ""

    def of_size(self, size: int) -> ImportSpec:
        """Return the same specification with another size."""
        return replace(self, options=replace(self.options, size=size))

    @property
    def settings(self) -> str:
        """The end of the source line of such a set, which records its options."""
        dataset = dataset_of(self.kind)
        if isinstance(dataset, Layout):
            return settings_of_people(dataset, self.options)
        return settings_of(self.reading, self.options)

    @property
    def reading(self) -> ReadSettings:
        """Reading settings of a dataset of attacks."""
        return read_settings_of(SCANNERS[self.kind], self.options)

    def is_met_by(self, manifest: Manifest) -> bool:
        """Return whether a set is of this dataset, with this size and these options."""
        settings, _, _ = manifest.source.partition(ORDER)  # the order comes from the files, not from the options
        return (
            self.is_of_kind(manifest) and manifest.size == self.options.size and settings.endswith(f" {self.settings}")
        )

    def is_of_kind(self, manifest: Manifest) -> bool:
        """Return whether a set is of this dataset, with any options."""
        dataset = dataset_of(self.kind)
        if isinstance(dataset, Layout):
            _, named, kind = manifest.source.partition(" kind=")
            # Sets of folders of one's own do not name their kind.
            return kind.startswith(f"{self.kind} ") if dataset.page else manifest.source[:7] == "people " and not named
        return manifest.source.startswith(f"{self.kind} ")

    def command(self, source: str, destination: Path) -> str:
        """Return the command that imports the set."""
        words = ["fedvisage data import", self.kind, shlex.quote(source), shlex.quote(str(destination)), self.words]
        return " ".join([*(word for word in words if word), f"--size {self.options.size}"])


def read_spec(text: str, place: str) -> ImportSpec:
    """Read a line such as ``oulu-npu --frames 10``."""
    try:
        kind, *words = shlex.split(text)
    except ValueError:
        raise UserError(place, f"must be a dataset kind with import options, got {text!r}") from None
    try:
        dataset_of(kind)
        options = _options(words)
        # The recipe defines the size.
        index = words.index("--size") if "--size" in words else len(words)
        spec = ImportSpec(kind, ImportOptions(**options), " ".join(words[:index] + words[index + 2 :]))
        _ = spec.settings  # raises for options that the dataset does not support
    except UserError as error:
        raise UserError(place, f"{text!r}: {error}") from None
    return spec


def _options(words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in _DEFAULTS:
            raise UserError(word, "is not an option of data import")
        kind = type(_DEFAULTS[name])
        if kind is bool:
            values[name] = True
            continue
        try:
            values[name] = kind(remaining.pop(0))
        except (IndexError, ValueError):
            raise UserError(word, f"needs a value that is {'a number' if kind in (int, float) else 'a word'}") from None
    return {name: value for name, value in values.items() if name not in _LATER}
