"""The scanner of a dataset, and the default scan: by the names of files, with one grammar after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import PurePosixPath

from fedvisage.base.errors import UserError, printable
from fedvisage.datasets.dataset import (
    SHOWN,
    Clip,
    Dataset,
    Example,
    Item,
    Listing,
    NamedFile,
    read_names,
    refuse_unknown_names,
)
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import BoxFiles, LabelLists, check_lists
from fedvisage.datasets.tree import MEDIA_ENDINGS, Tree, ending_of, without_ending

COLOURS = ("rgb", "bgr")
"""Possible orders of colours in arrays."""

Count = tuple[int, int]
"""Bona fide items and attacks."""


@dataclass(frozen=True, kw_only=True)
class Scanner(Dataset):
    """A dataset of presentation attacks, with the known contents of a complete copy."""

    official: bool = True
    """True for a published dataset, with its authors' split and known counts."""
    counts: Mapping[str, Count] = field(default_factory=dict)
    """Videos in a complete copy by `Item.place`; ``all`` is the total, even if items have a split."""
    beside: tuple[str, ...] = ()
    """Patterns for the paths of expected files that are not items, such as ``*.face``; reports omit them."""
    lists: LabelLists | None = None
    boxes: BoxFiles | None = None
    check: Callable[[Tree, Sequence[Item]], None] | None = None
    """Further checks of the scanned items; raises UserError."""
    enrolment: bool = False
    released: bool = False
    """True if released lists contain a known mistake that an option can reproduce."""
    of: tuple[str, ...] = ()
    """Datasets whose frames it contains, if it is not a dataset itself."""
    turned: bool = False
    """True if some videos are upside down: if no face is detected, the frames are rotated by 180 degrees."""
    further: Callable[[int], tuple[Clip, ...]] | None = None
    """The clips of an additional person in a small copy, by a number from 0: bona fide, and attacks."""
    crowd: Callable[[int], Iterable[Example]] | None = None
    """A copy with this number of people, for datasets with enrolment, bona fide attempts and attacks per person."""
    scan: Callable[[Scanner, Tree, ImportOptions], Listing] | None = None
    """Finds the items; by their names unless a dataset needs another way."""

    @property
    def whole_copy(self) -> tuple[str, ...]:
        """The counts of a complete copy, by place."""
        return tuple(
            f"{place}: {real:,} bona fide, {attacks:,} attacks" for place, (real, attacks) in self.counts.items()
        )

    def list(self, tree: Tree, options: ImportOptions) -> Listing:
        """Scan a tree and check the result."""
        if options.enroll and not self.enrolment:
            raise UserError("--enroll", f"{self.title} has no enrolment videos")
        if options.live is not None and self.lists is None:
            raise UserError("--labels", f"fedvisage does not read label lists of {self.title}")
        if options.released and not self.released:
            raise UserError("--labels", f"the lists released with FedSIS do not mislabel anything in {self.title}")
        if options.of and options.of not in self.of:
            remedy = f"choose one of {', '.join(self.of)}" if self.of else f"{self.title} is a dataset of its own"
            raise UserError("--of", f"{options.of!r} cannot be named here; {remedy}")
        has_arrays = any(name.kind == "arrays" for name in self.names)
        if options.colour and (options.colour not in COLOURS or not has_arrays):
            remedy = f"choose one of {', '.join(COLOURS)}" if has_arrays else f"{self.title} has no arrays"
            raise UserError("--colour", f"{options.colour!r} cannot be chosen; {remedy}")
        listing = (self.scan or scan_by_name)(self, tree, options)
        if self.check:
            self.check(tree, listing.items)
        return listing


def scan_by_name(scanner: Scanner, tree: Tree, options: ImportOptions, notes: tuple[str, ...] = ()) -> Listing:
    """Read every file's name; count other files by reason, and refuse a tree that is not a copy of this dataset.

    The notes are for the report, and for the message about another tree.
    """
    files = read_names(scanner, tree, options, notes)
    stray = Counter(entry.reason for entry in files.left_out)
    # Other endings are only counted; media with unknown names show that this is another dataset.
    others = {name for name in tree.files if ending_of(name) not in MEDIA_ENDINGS}
    unknown = []
    for file in files.unknown:
        if any(fnmatch(file.casefold(), pattern.casefold()) for pattern in scanner.beside):
            continue
        if file in others:
            stray[f"files ending in {printable(ending_of(file)) or 'nothing'}"] += 1
        else:
            unknown.append(printable(file))
            stray["videos and images with other names"] += 1
    refuse_unknown_names(scanner, tree.root, unknown, len(files.known), "videos and images")
    listed = [_make_item(scanner, tree, others, file, options) for _, file in sorted(files.known.items())]
    if scanner.lists:
        notes = (*check_lists(scanner.lists, tree, listed, options.live), *notes)
    if any(item.kind == "arrays" for item in listed) and not options.colour:
        notes = (*notes, "arrays are read as RGB; --colour bgr reads them as BGR")
    if tree.hidden:
        stray["hidden files"] += tree.hidden
    return Listing(listed, tuple(files.skipped), stray, tuple(unknown[:SHOWN]), notes)


def _make_item(scanner: Scanner, tree: Tree, others: Container[str], file: NamedFile, options: ImportOptions) -> Item:
    """Return an item with the file of its boxes, which is next to it or below the root."""
    path, tail, entry = file.path, file.tail, file.entry
    item_name = tail if file.name.kind == "frames" else tail + path[len(without_ending(path)) :]
    above = path[: len(path) - len(item_name)]
    candidates = scanner.boxes.candidates(item_name) if scanner.boxes else ()
    places = (place for candidate in candidates for place in (f"{above}{candidate}", candidate))
    boxes = (tree.path(place) for place in places if place in others and not tree.path(place).is_symlink())
    return Item(
        tree.path(path),
        item_name,
        file.name.kind,
        entry.species,
        "/".join(part for part in (scanner.kind, entry.part, entry.subject or tail) if part),
        str(PurePosixPath(tail).with_name(entry.video)) if entry.video else tail,
        entry.split,
        entry.extra,
        boxes=next(boxes, None),
        frame=entry.frame,
        own_subject=not entry.subject,
        bgr=options.colour == "bgr",
    )
