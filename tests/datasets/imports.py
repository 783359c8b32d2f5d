"""Small copies of datasets for tests, and their imports: without a detector, unless the options ask for one."""

import shutil
from pathlib import Path
from typing import Any

from tests.toy import discard

from fedvisage.base.parallel import Progress
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import LAYOUTS, SCANNERS, write_small_copy
from fedvisage.datasets.dataset import Item, Listing
from fedvisage.datasets.import_people import import_people
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.importing import import_dataset
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.people.folders import IDENTITIES
from fedvisage.datasets.people.layout import Layout, PhotographList
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.tree import walk


def import_attacks(
    dataset: str | Scanner, source: Path, destination: Path, progress: Progress | None = None, **options: Any
) -> tuple[PreparedSet, ImportReport]:
    scanner = SCANNERS[dataset] if isinstance(dataset, str) else dataset
    settings: dict[str, Any] = {"size": 24, "frames": "4", "crop": "centre", "max_bad": 1.0} | options
    report = import_items(scanner, source, destination, ImportOptions(**settings), name=scanner.kind, progress=progress)
    return PreparedSet.open(destination, verify=True), report


def import_quietly(kind: str, source: Path, destination: Path, *, name: str = "", **options: Any) -> list[str]:
    """Import as `fedvisage data import` does, and return the lines of the report."""
    return import_dataset(kind, source, destination, discard, name=name, options=ImportOptions(**options))


def layout_of(kind: str) -> Layout:
    return IDENTITIES if kind == IDENTITIES.kind else LAYOUTS[kind]


def import_photographs(kind: str, source: Path, destination: Path, **options: Any) -> ImportReport:
    return import_people(layout_of(kind), source, destination, ImportOptions(**{"size": 112} | options), name="P")


def list_photographs(kind: str, source: Path) -> PhotographList:
    return layout_of(kind).scan(layout_of(kind), source)


def write_changed_copy(kind: str, root: Path, file: str, old: str, new: str) -> Path:
    """Write a small copy of a dataset below a folder, and replace a text once in one of its files."""
    write_small_copy(kind, root)
    content = (root / file).read_bytes().decode()
    assert old in content
    (root / file).write_bytes(content.replace(old, new, 1).encode())
    return root


PUBLISHED = [kind for kind, scanner in SCANNERS.items() if scanner.official]


def copy_to(original: Path, to: Path) -> Path:
    return Path(shutil.copytree(original, to))


def list_items(kind: str, root: Path, choices: ImportOptions | None = None) -> Listing:
    return SCANNERS[kind].list(walk(root), choices or ImportOptions())


def files_of(item: Item) -> list[Path]:
    """Return the files that hold an item's pictures."""
    return sorted(item.path.iterdir()) if item.kind == "frames" else [item.path]


def media_files(kind: str, root: Path) -> list[Path]:
    """Return the files with faces that a plain import takes."""
    return [path for item in list_items(kind, root).items for path in files_of(item)]
