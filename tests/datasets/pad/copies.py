"""Items and files of small copies of datasets, and copies of these that a test may change."""

import shutil
from pathlib import Path

from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Item, Listing
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.tree import walk

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
