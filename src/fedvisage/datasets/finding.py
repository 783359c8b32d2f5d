"""Finds the datasets that lie below one folder, each in a folder of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedvisage.datasets.importers.report import printable
from fedvisage.datasets.scanners.catalogue import SCANNERS
from fedvisage.datasets.scanners.item import Choices
from fedvisage.datasets.scanners.scanner import sight
from fedvisage.datasets.scanners.tree import MEDIA_ENDINGS, Tree, ending_of, walk
from fedvisage.errors import UserError

ENOUGH = 0.5
"""A folder is a dataset if more than this share of its media files have names of it; the import looks more closely."""


@dataclass(frozen=True)
class Found:
    """The datasets below a folder by kind, and the folders that are none."""

    datasets: Mapping[str, Path]
    unknown: tuple[str, ...]


def find_datasets(root: Path) -> Found:
    """Look into each folder below the root for a dataset of the catalogue."""
    if not root.is_dir():
        raise UserError(str(root), "no such directory; give the folder that holds the datasets")
    datasets: dict[str, Path] = {}
    unknown = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        kind = recognise(walk(folder)) if not folder.is_symlink() else None
        if kind is None:
            unknown.append(printable(folder.name))
        elif kind in datasets:
            both = f"{datasets[kind].name} and {folder.name}"
            raise UserError(str(root), f"{both} both hold {kind}; import that dataset by itself, or move one away")
        else:
            datasets[kind] = folder
    if not datasets:
        seen = f"found {', '.join(unknown[:8])}" if unknown else "it has no folders"
        message = "holds no dataset that is known: each must lie in a folder of its own"
        raise UserError(str(root), f"{message}; {seen}; `fedvisage data kinds` lists what is known")
    return Found(datasets, tuple(unknown))


def recognise(tree: Tree) -> str | None:
    """Return which dataset a folder holds, if its files' names say so."""
    media = [name for name in tree.files if ending_of(name) in MEDIA_ENDINGS]
    known = Counter({
        kind: sum(sight(scanner, name, Choices()) is not None for name in media)
        for kind, scanner in SCANNERS.items() if scanner.official
    })  # fmt: skip
    kind, count = known.most_common(1)[0]
    return kind if count > ENOUGH * len(media) else None
