"""Find the datasets and the prepared sets below one folder, each in a folder of its own.

Datasets of attacks are recognised by their file names. Datasets of people are recognised by the names of their
photographs, by a list in the same folder, or by the ending of the single file that holds the dataset.
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
from fedvisage.datasets.dataset import match_name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.tree import MEDIA_ENDINGS, Tree, ending_of, walk, without_ending
from fedvisage.faces import pictures

MATCHING_SHARE = 0.5
"""A folder is a dataset if more than this share of its media files match its names; the import checks more closely."""


@dataclass(frozen=True)
class FoundDataset:
    """A dataset: its kind, its location, and the name of its set."""

    kind: str
    source: Path
    name: str


@dataclass(frozen=True)
class FolderContents:
    """The datasets below a folder, and the folders that match no known dataset."""

    datasets: tuple[FoundDataset, ...]
    unknown: tuple[str, ...]

    def of_kind(self, kind: str, root: Path) -> Path | None:
        """Return the location of a dataset; raise UserError for two copies, because either could be meant."""
        sources = [dataset.source for dataset in self.datasets if dataset.kind == kind]
        if len(sources) > 1:
            both = f"{sources[0].name} and {sources[1].name}"
            raise UserError(str(root), f"{both} both contain {kind}; import that dataset separately, or move one away")
        return sources[0] if sources else None


def find_datasets(root: Path) -> FolderContents:
    """Look into each folder below the root for a dataset of the catalogue; raise UserError if there is none."""
    below = scan_folders(root)
    for kind in {dataset.kind: None for dataset in below.datasets if dataset.name == dataset.kind}:
        below.of_kind(kind, root)
    if not below.datasets:
        contents = f"found {', '.join(below.unknown[:8])}" if below.unknown else "it has no folders"
        message = "contains no known dataset: each must be in a folder of its own"
        raise UserError(str(root), f"{message}; {contents}; `fedvisage data kinds` lists the known datasets")
    return below


def scan_folders(root: Path) -> FolderContents:
    """Look into each folder below the root for datasets of the catalogue; several may be of the same kind."""
    if not root.is_dir():
        raise UserError(str(root), "directory not found; give the folder that contains the datasets")
    datasets: list[FoundDataset] = []
    unknown = []
    for folder in _folders(root):
        folder_datasets = [] if folder.is_symlink() else [*_datasets_of(folder)]
        datasets += folder_datasets
        if not folder_datasets:
            unknown.append(printable(folder.name))
    return FolderContents(tuple(datasets), tuple(unknown))


def list_sets_below(root: Path) -> dict[Path, Manifest]:
    """Return the prepared sets one or two levels below a root; skip folders without a readable manifest."""
    manifests: dict[Path, Manifest] = {}
    for folder in _folders(root):
        for place in [folder] if (folder / SET).is_file() else _folders(folder):
            if (place / SET).is_file():
                try:
                    manifests[place] = read_manifest(place)
                except UserError:
                    continue
    return manifests


def _folders(place: Path) -> Iterable[Path]:
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if not path.name.startswith(".") and path.is_dir())


def _datasets_of(folder: Path) -> Iterator[FoundDataset]:
    """Yield the datasets of a folder: the folder itself, or each file that contains a complete dataset."""
    tree = walk(folder)
    kind = recognise(tree)
    if kind is not None:
        yield FoundDataset(kind, folder, kind)
        return
    for layout in LAYOUTS.values():
        if layout.file is None:
            continue
        ending, begins = layout.file
        for name in tree.files:
            path = tree.path(name)
            if "/" in name or path.suffix.lower() != ending or path.is_symlink() or not path.is_file():
                continue
            # Unrelated files can have the same ending.
            with path.open("rb") as file:
                first_byte = file.read(1)
            if first_byte and first_byte in begins:
                plain_name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{folder.name}-{without_ending(name)}")
                yield FoundDataset(layout.kind, path, f"{layout.kind}-{plain_name}")


def recognise(tree: Tree) -> str | None:
    """Return the kind of dataset in a folder if its file names match one."""
    media = [name for name in tree.files if ending_of(name) in MEDIA_ENDINGS]
    matches = Counter(
        {
            kind: sum(match_name(scanner, name, ImportOptions()) is not None for name in media)
            for kind, scanner in SCANNERS.items()
            if scanner.official and not scanner.of
        }
    )
    kind, count = matches.most_common(1)[0]
    if count > MATCHING_SHARE * len(media):
        return kind
    images = [without_ending(name) for name in media if ending_of(name) in pictures.ENDINGS]
    for layout in LAYOUTS.values():
        # The photographs are named as in the dataset, and its list exists.
        listed = not layout.list_beside or any(f"/{name}".endswith(f"/{layout.list_beside}") for name in tree.files)
        if layout.sign and images and listed:
            named = sum(re.search(layout.sign, name) is not None for name in images)
            if named > MATCHING_SHARE * len(images):
                return layout.kind
    return None
