"""Finds the datasets and the prepared sets that lie below one folder, each in a folder of its own.

A dataset of attacks is known by the names of its files. One of people is known by what its photographs are called, by
a list that lies beside them, or by the ending of the one file that holds them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedvisage.base.errors import UserError, printable
from fedvisage.data.prepared import SET, Manifest, read_manifest
from fedvisage.datasets.catalogue import LAYOUTS, SCANNERS
from fedvisage.datasets.pad.item import Choices
from fedvisage.datasets.pad.scanner import sight
from fedvisage.datasets.pad.tree import MEDIA_ENDINGS, Tree, ending_of, walk, without_ending
from fedvisage.datasets.people.layout import Layout
from fedvisage.faces import pictures

ENOUGH = 0.5
"""A folder is a dataset if more than this share of its media files have names of it; the import looks more closely."""


@dataclass(frozen=True)
class Found:
    """A dataset: its kind, where it lies, and what its set is called."""

    kind: str
    source: Path
    name: str


@dataclass(frozen=True)
class Below:
    """The datasets below a folder, and the folders that are none."""

    datasets: tuple[Found, ...]
    unknown: tuple[str, ...]

    def of_kind(self, kind: str, root: Path) -> Path | None:
        """Return where a dataset lies; two copies are refused, because nobody knows which one is meant."""
        found = [one.source for one in self.datasets if one.kind == kind]
        if len(found) > 1:
            both = f"{found[0].name} and {found[1].name}"
            raise UserError(str(root), f"{both} both hold {kind}; import that dataset by itself, or move one away")
        return found[0] if found else None


def find_datasets(root: Path) -> Below:
    """Look into each folder below the root for a dataset of the catalogue; without any, raise UserError."""
    below = look_below(root)
    for kind in {one.kind: None for one in below.datasets if one.name == one.kind}:
        below.of_kind(kind, root)
    if not below.datasets:
        seen = f"found {', '.join(below.unknown[:8])}" if below.unknown else "it has no folders"
        message = "holds no dataset that is known: each must lie in a folder of its own"
        raise UserError(str(root), f"{message}; {seen}; `fedvisage data kinds` lists what is known")
    return below


def look_below(root: Path) -> Below:
    """Look into each folder below the root for datasets of the catalogue, several of which may be of one kind."""
    if not root.is_dir():
        raise UserError(str(root), "no such directory; give the folder that holds the datasets")
    datasets: list[Found] = []
    unknown = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        found = [] if folder.is_symlink() else [*_datasets_of(folder)]
        datasets += found
        if not found:
            unknown.append(printable(folder.name))
    return Below(tuple(datasets), tuple(unknown))


def sets_below(root: Path) -> dict[Path, Manifest]:
    """Return the prepared sets that lie in the folders below a root, or in theirs; what cannot be read is none."""
    found: dict[Path, Manifest] = {}
    for folder in _folders(root):
        for place in [folder] if (folder / SET).is_file() else _folders(folder):
            if (place / SET).is_file():
                try:
                    found[place] = read_manifest(place)
                except UserError:
                    continue
    return found


def _folders(place: Path) -> Iterable[Path]:
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if not path.name.startswith(".") and path.is_dir())


def _datasets_of(folder: Path) -> Iterator[Found]:
    """Yield what a folder holds: one dataset, or one in each file that holds a whole one."""
    tree = walk(folder)
    kind = recognise(tree)
    if kind is not None:
        yield Found(kind, folder, kind)
        return
    for layout in LAYOUTS.values():
        if layout.file is None:
            continue
        for name in tree.files:
            if "/" not in name and _holds(tree.path(name), *layout.file):
                yield Found(layout.kind, tree.path(name), f"{layout.kind}-{_plain(folder.name, without_ending(name))}")


def _holds(path: Path, ending: str, begins: bytes) -> bool:
    """Tell whether a file may hold a whole dataset: others have the same ending."""
    if path.suffix.lower() != ending or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) in {bytes([one]) for one in begins}


def _plain(*words: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(words))


def recognise(tree: Tree) -> str | None:
    """Return which dataset a folder holds, if its files' names say so."""
    media = [name for name in tree.files if ending_of(name) in MEDIA_ENDINGS]
    known = Counter({
        kind: sum(sight(scanner, name, Choices()) is not None for name in media)
        for kind, scanner in SCANNERS.items() if scanner.official and not scanner.of
    })  # fmt: skip
    kind, count = known.most_common(1)[0]
    if count > ENOUGH * len(media):
        return kind
    images = [without_ending(name) for name in media if ending_of(name) in pictures.ENDINGS]
    return next((one.kind for one in LAYOUTS.values() if _is_of(one, tree, images)), None)


def _is_of(layout: Layout, tree: Tree, images: list[str]) -> bool:
    """Tell whether the photographs are called as those of a dataset, and the list is there that it is known by."""
    if not layout.sign or not images:
        return False
    beside = not layout.list_beside or any(f"/{name}".endswith(f"/{layout.list_beside}") for name in tree.files)
    return beside and sum(re.search(layout.sign, name) is not None for name in images) > ENOUGH * len(images)
