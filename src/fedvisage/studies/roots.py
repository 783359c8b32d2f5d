"""Studies on a folder of datasets: locating the sets of a study, importing the missing ones, and estimating the effort.

A set is identified by its manifest, not by its name: it must come from the dataset that the study names, imported with
the same settings, at the recipe's size. If there is no such set, but the original dataset, it is imported into its own
directory, never into the root. All sets that are missing and cannot be imported are listed, and the study does not
start.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, duration_in_words, format_count
from fedvisage.data.prepared import DEPTH_SIZE, POINT_COUNT, Manifest
from fedvisage.datasets.catalogue import LAYOUTS, SCANNERS, dataset_of
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.finding import FolderContents, list_sets_below, scan_folders
from fedvisage.datasets.frames import read_item
from fedvisage.datasets.import_presentations import limit_items
from fedvisage.datasets.importing import ImportSpec, import_dataset, read_spec
from fedvisage.datasets.sources import SYNTHETIC
from fedvisage.datasets.tree import walk
from fedvisage.metrics.recorded import read_metrics
from fedvisage.recipe.data import named_weights
from fedvisage.runs.directory import METRICS
from fedvisage.studies.grid import Cell, SizedSet, source_of, with_paths
from fedvisage.studies.study import Study

# Estimate before a study starts: cells, images, disk space, and time as far as it can be measured.

Plans = Mapping[Path, tuple[ImportSpec, Path]]
"""Imports by the path of the future set: the specification, and the path of the dataset."""

TIMED = 3
"""Files of each dataset that are read to measure the import's speed."""
MANY = 20
"""Smallest number of files that justifies a measurement."""
POINTS_BYTES = 8


def describe_needs(cells: Sequence[Cell], sets: Mapping[str, str], plans: Plans, room: Path, workers: int) -> list[str]:
    """Report the sets, the imports, and their effort; raise UserError if the disk has too little space."""
    unfinished = [cell for cell in cells if not (cell.out / METRICS).exists()]
    lines = [f"{format_count(len(cells), 'cell')}, {len(unfinished)} of them still to run"]
    lines += [f"{name}: {description}" for name, description in sets.items()]
    images = size = 0
    seconds = list[float]()
    for target, (spec, original) in plans.items():
        count, image_count, reading = _of_import(spec, original)
        image_bytes = 3 * spec.options.size**2 + DEPTH_SIZE**2 + POINTS_BYTES * POINT_COUNT
        images, size = images + image_count, size + image_count * image_bytes
        speed = f", {reading:.2f} s each (measured on {TIMED})" if reading else ""
        amounts = f"{format_count(count, 'file')}, about {format_count(image_count, 'image')}"
        lines.append(f"{target.name}: {amounts}{speed}")
        seconds.append(count * reading / workers)
    if plans:
        existing = next(place for place in (room.absolute(), *room.absolute().parents) if place.is_dir())
        free = shutil.disk_usage(existing).free
        disk = f"{_gigabytes(size)} of the {_gigabytes(free)} free on the disk of {room}"
        lines.append(f"imports: {format_count(images, 'image')}, {disk}, about {duration_in_words(sum(seconds))}")
        if size > free:
            raise UserError(
                str(room),
                f"needs {_gigabytes(size)} for the sets, and {_gigabytes(free)} are free; name"
                " another place with --sets",
            )
    return [*lines, _training(cells, unfinished, workers)]


def files_of(wanted: ImportSpec, original: Path) -> Sequence[Item]:
    """Return the videos and images that an import of presentation attacks reads."""
    scanner = SCANNERS[wanted.kind]
    items = scanner.list(walk(original), wanted.options).items
    return limit_items(items, wanted.options.few)


def _of_import(wanted: ImportSpec, original: Path) -> tuple[int, int, float]:
    """Return the number of files an import reads, the number of images it writes, and measured seconds per file."""
    if wanted.kind in LAYOUTS:
        layout = LAYOUTS[wanted.kind]
        count = len(layout.scan(layout, original))
        return count, count, 0.0
    items, reading = files_of(wanted, original), wanted.reading
    frames = reading.frames.count or len(reading.frames.places)
    images = sum(1 if item.kind == "image" else frames for item in items)
    if len(items) < MANY:
        return len(items), images, 0.0
    read_item(items[0], reading)  # loads the detector, which is not part of the measurement
    began = time.perf_counter()
    for number in range(1, TIMED + 1):
        read_item(items[number * (len(items) - 1) // TIMED], reading)
    return len(items), images, (time.perf_counter() - began) / TIMED


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def _training(cells: Sequence[Cell], todo: Sequence[Cell], workers: int) -> str:
    """Estimate the remaining time from finished cells: from those of the same row, if there are any."""
    if not todo:
        return "training: all cells are finished"
    finished = [(cell.row, cell.out / METRICS) for cell in cells if (cell.out / METRICS).exists()]
    seconds = [(row, read_metrics(path, "run the cell again").number("seconds")) for row, path in finished]
    measured = [(row, value) for row, value in seconds if value is not None]
    if not measured:
        return "training: no estimate before the first cell is finished; run the same command again after that"
    mean_seconds = fmean(value for _, value in measured)
    of_row = {cell.row: [value for row, value in measured if row == cell.row] for cell in todo}
    remaining = sum(fmean(of_row[cell.row] or [mean_seconds]) for cell in todo)
    count = format_count(len(measured), "cell")
    return f"training: about {duration_in_words(remaining / workers)}, estimated from {count} that are finished"


FEW = 200
"""Approximate number of videos or images of a dataset that a smoke test reads."""


@dataclass(frozen=True)
class Root:
    """A folder of datasets, the directory for imported sets, and the settings of the imports."""

    folder: Path
    sets: Path
    workers: int = 1
    few: bool = False


@dataclass(frozen=True)
class Need:
    """A set of a study: a prepared set, a dataset to import, or a missing one."""

    name: str
    source: SizedSet
    spec: ImportSpec | None
    made_by: str = ""
    """The study's command for a set without a dataset."""
    prepared: Path | None = None
    original: Path | None = None
    target: Path | None = None
    almost: Path | None = None
    """A set of the same dataset with other import settings."""

    @property
    def place(self) -> Path | None:
        """The path of the set, present or future."""
        return self.prepared or (self.target if self.original is not None else None)


def on_root(study: Study, cells: Sequence[Cell], root: Root, say: Say) -> list[Cell]:
    """Find or import every set, after an estimate of the effort, and return the cells with the sets' paths."""
    needs = find_sets(study, cells, root)
    files = missing_files(cells)
    if missing := [need for need in needs if need.place is None]:
        for need in missing:
            say(_what_lacks(need, root))
    for file in files:
        say(f"{file}: file not found, but recipes name it")
    if missing or files:
        names = "; ".join([*(f"{need.name} ({_title(need)}): {_how_to_make(need, root)}" for need in missing), *files])
        count = format_count(len(missing) + len(files), "set or file", "sets or files")
        raise UserError(str(root.folder), f"{count} of the study not found; nothing was run. {names}")
    plans: dict[Path, tuple[ImportSpec, Path]] = {}
    sets: dict[str, str] = {}
    for need in needs:
        sets[need.name] = f"{_title(need)}: the set {need.prepared}"
        if need.original is not None:
            assert need.spec is not None
            assert need.target is not None
            plans[need.target] = need.spec, need.original
            sets[need.name] = f"{_title(need)}: {need.original}, to be imported to {need.target}"
    for line in describe_needs(cells, sets, plans, root.sets, root.workers):
        say(line)
    for target, (spec, original) in plans.items():
        options = replace(spec.options, workers=root.workers)
        for line in import_dataset(spec.kind, original, target, say, name=spec.kind, options=options):
            say(line)
    places = {need.source: need.place for need in needs if need.place is not None}
    return [with_paths(cell, places) for cell in cells]


def find_sets(study: Study, cells: Sequence[Cell], root: Root) -> list[Need]:
    """Return the path of each set of a study, or of the dataset to import it from."""
    sources = dict.fromkeys(
        (source_of(entry), cell.recipe.input.size)
        for cell in cells
        for entry in cell.recipe.data.entries
        if not entry.startswith(SYNTHETIC)
    )
    below = scan_folders(root.folder)
    prepared = list_sets_below(root.folder) | list_sets_below(root.sets)
    return [_find(study, source, root, below, prepared) for source in sources]


def _find(study: Study, source: SizedSet, root: Root, below: FolderContents, prepared: Mapping[Path, Manifest]) -> Need:
    path, size = source
    name = Path(path).name
    if name not in study.imports:
        same = (place for place, manifest in prepared.items() if place.name == name and manifest.size == size)
        return Need(name, source, None, study.made_by.get(name, ""), next(same, None))
    spec = read_spec(study.imports[name], f"imports.{name}").of_size(size)
    spec = replace(spec, options=replace(spec.options, few=FEW if root.few else 0))
    matching = [place for place, manifest in prepared.items() if spec.is_met_by(manifest)]
    similar = [place for place, manifest in prepared.items() if spec.is_of_kind(manifest)]
    digest = hashlib.sha256(spec.settings.encode()).hexdigest()[:8]  # so that other import options have another name
    target = root.sets / f"{spec.kind}-{spec.options.size}px-{digest}"
    return Need(
        name,
        source,
        spec,
        prepared=matching[0] if matching else None,
        original=None if matching else below.of_kind(spec.kind, root.folder),
        target=target,
        almost=similar[0] if similar and not matching else None,
    )


def missing_files(cells: Sequence[Cell]) -> list[str]:
    """Return the missing files of weights that recipes name."""
    named = {file for cell in cells for file in named_weights(cell.resolved).values()}
    return sorted(file for file in named if not Path(file).expanduser().exists())


def _title(need: Need) -> str:
    return dataset_of(need.spec.kind).title if need.spec is not None else "dataset not given"


def _what_lacks(need: Need, root: Root) -> str:
    """Describe a missing set: the dataset, the searched folder, its download page, and the command to import it."""
    if need.spec is None:
        return (
            f"{need.name}: the study does not name its dataset; searched for a prepared set named {need.name}"
            f" of {need.source[1]} pixels below {root.folder}. To make one: {_how_to_make(need, root)}"
        )
    dataset = dataset_of(need.spec.kind)
    layout = " ".join(dataset.expects.split("\n")[0].split())
    message = f"{need.name}: {dataset.title}, searched for a folder below {root.folder} with {layout}"
    if need.almost is not None:
        settings = f"{need.spec.settings} at {need.spec.options.size} px"
        message += f"; {need.almost} is from this dataset, but was not imported with {settings}"
    download = f"; {'; '.join(dataset.request)}" if dataset.request else ""
    return f"{message}{download}. If it is elsewhere: {_how_to_make(need, root)}"


def _how_to_make(need: Need, root: Root) -> str:
    """Return the command that makes a missing set; its names in capitals are placeholders."""
    if need.spec is not None:
        assert need.target is not None
        return need.spec.command("DIRECTORY", need.target)
    if not need.made_by:
        return f"the study gives no command; any prepared set named {need.name} of {need.source[1]} pixels will do"
    words = [shlex.quote(str(root.sets / need.name)) if word == "SET" else word for word in need.made_by.split()]
    return " ".join(["fedvisage data", *words, f"--size {need.source[1]}"])
