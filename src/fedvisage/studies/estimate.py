"""What a study will need before it starts: cells, images, disk, and hours as far as they can be measured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedvisage.data.manifest import DEPTH_SIZE, POINT_COUNT
from fedvisage.datasets.importers.pipeline import few_of
from fedvisage.datasets.importers.reading import read_item
from fedvisage.datasets.importing import choices_of
from fedvisage.datasets.people.catalogue import LAYOUTS
from fedvisage.datasets.scanners.catalogue import SCANNERS
from fedvisage.datasets.scanners.item import Item
from fedvisage.datasets.scanners.tree import walk
from fedvisage.datasets.wanted import Wanted
from fedvisage.errors import UserError
from fedvisage.files import read_json
from fedvisage.progress import counted, lasting
from fedvisage.runs.directory import METRICS
from fedvisage.studies.grid import Cell

Plans = Mapping[Path, tuple[Wanted, Path]]
"""Imports by where the set will be: what is wanted, and where the dataset lies."""

TIMED = 3
"""Files of each dataset that are read to measure how long the import will take."""
MANY = 20
"""Files of a dataset above which it is worth while to measure."""
POINTS_BYTES = 8


def describe_needs(cells: Sequence[Cell], sets: Mapping[str, str], plans: Plans, room: Path, workers: int) -> list[str]:
    """Say what there is, what will be made, and what that takes; raise UserError where the disk cannot hold it."""
    todo = [cell for cell in cells if not (cell.out / METRICS).exists()]
    lines = [f"{counted(len(cells), 'cell')}, {len(todo)} of them to be run"]
    lines += [f"{name}: {said}" for name, said in sets.items()]
    images = size = 0
    seconds = list[float]()
    for target, (wanted, original) in plans.items():
        count, own, reading = _of_import(wanted, original)
        images, size = images + own, size + own * _image_bytes(wanted)
        lines.append(f"{target.name}: {counted(count, 'file')}, about {counted(own, 'image')}{_slow(count, reading)}")
        seconds.append(count * reading / workers)
    if plans:
        free = shutil.disk_usage(_nearest(room)).free
        disk = f"{_gigabytes(size)} of {_gigabytes(free)} free on the disk of {room}"
        lines.append(f"imports: {counted(images, 'image')}, {disk}, about {lasting(sum(seconds))}")
        if size > free:
            raise UserError(str(room), f"needs {_gigabytes(size)} for the sets, and {_gigabytes(free)} are free; name"
                            " another place with --sets")  # fmt: skip
    return [*lines, _training(cells, todo, workers)]


def files_of(wanted: Wanted, original: Path) -> Sequence[Item]:
    """Return the videos and images that the import of attacks will read."""
    scanner = SCANNERS[wanted.kind]
    items = scanner.list(walk(original), choices_of(wanted.options)).items
    return few_of(items, wanted.options.few)


def _of_import(wanted: Wanted, original: Path) -> tuple[int, int, float]:
    """Return how many files an import reads, how many images it writes, and the seconds for a file, measured."""
    if wanted.kind in LAYOUTS:
        layout = LAYOUTS[wanted.kind]
        count = len(layout.scan(layout, original))
        return count, count, 0.0
    items, reading = files_of(wanted, original), wanted.reading
    frames = reading.frames.count or len(reading.frames.places)
    images = sum(1 if item.kind == "image" else frames for item in items)
    if len(items) < MANY:
        return len(items), images, 0.0
    read_item(items[0], reading)  # which loads the detector
    began = time.perf_counter()
    for number in range(1, TIMED + 1):
        read_item(items[number * (len(items) - 1) // TIMED], reading)
    return len(items), images, (time.perf_counter() - began) / TIMED


def _image_bytes(wanted: Wanted) -> int:
    return 3 * wanted.options.size**2 + DEPTH_SIZE**2 + POINTS_BYTES * POINT_COUNT


def _slow(count: int, reading: float) -> str:
    return f", {reading:.2f} s each (measured on {TIMED})" if reading else ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def _nearest(path: Path) -> Path:
    """Return the path, or the first directory above it that is there."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.is_dir())


def _training(cells: Sequence[Cell], todo: Sequence[Cell], workers: int) -> str:
    """Say how long the rest will take, by the cells that are finished; each row by its own where it has some."""
    if not todo:
        return "training: all cells are finished"
    measured = [(cell.row, seconds) for cell in cells if (seconds := _seconds(cell.out / METRICS)) is not None]
    if not measured:
        return "training: nobody knows how long before the first cell is finished; then the same command says it"
    whole = fmean(seconds for _, seconds in measured)
    by_row = {name: _mean(seconds for row, seconds in measured if row == name) for name in {cell.row for cell in todo}}
    rest = sum(by_row[cell.row] or whole for cell in todo)
    return f"training: about {lasting(rest / workers)}, by {counted(len(measured), 'cell')} that are finished"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


def _seconds(path: Path) -> float | None:
    if not path.exists():
        return None
    seconds = read_json(path, "run the cell again").get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None
