"""The scanner of a dataset, and the default scan: by the names of files, with one grammar after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from fedvisage.base.errors import UserError, printable
from fedvisage.datasets.dataset import SHOWN, Clip, Dataset, Entry, Example, Name, match_name, refuse_unknown_names
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.item import Item, Listing
from fedvisage.datasets.pad.lists import BoxFiles, LabelLists, check_lists
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import (
    MEDIA_ENDINGS,
    Tree,
    ending_of,
    fault_of_file,
    without_ending,
)

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
    crowd: Callable[[int], Sequence[Example]] | None = None
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
        if options.colour and (options.colour not in COLOURS or not self._has_arrays):
            remedy = f"choose one of {', '.join(COLOURS)}" if self._has_arrays else f"{self.title} has no arrays"
            raise UserError("--colour", f"{options.colour!r} cannot be chosen; {remedy}")
        listing = (self.scan or scan_by_name)(self, tree, options)
        if self.check:
            self.check(tree, listing.items)
        return listing

    @property
    def _has_arrays(self) -> bool:
        return any(name.kind == "arrays" for name in self.names)


def scan_by_name(scanner: Scanner, tree: Tree, options: ImportOptions) -> Listing:
    """Read every file's name; count other files by reason, and refuse a tree that is not a copy of this dataset."""
    state = _ScanState(scanner, tree, options)
    for file in tree.files:
        state.take(file)
    if not state.items:
        names = ", ".join(f"{name.grammar.template} ({name.endings[0]}, …)" for name in scanner.names)
        raise tree.mismatch(f"does not match {scanner.title}: searched for {names}")
    refuse_unknown_names(scanner, tree.root, state.unknown, len(state.items), "videos and images")
    items = [state.items[key] for key in sorted(state.items)]
    notes = check_lists(scanner.lists, tree, items, options.live) if scanner.lists else ()
    if any(item.kind == "arrays" for item in items) and not options.colour:
        notes = (*notes, "arrays are read as RGB; --colour bgr reads them as BGR")
    if tree.hidden:
        state.stray["hidden files"] += tree.hidden
    return Listing(items, tuple(state.skipped), state.stray, tuple(state.unknown[:SHOWN]), notes)


@dataclass
class _ScanState:
    """The state of a scan by names."""

    scanner: Scanner
    tree: Tree
    options: ImportOptions
    items: dict[str, Item] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)  # from an item's key to its path
    skipped: list[SkippedFile] = field(default_factory=list)
    stray: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    others: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.others = {name for name in self.tree.files if ending_of(name) not in MEDIA_ENDINGS}

    def take(self, file: str) -> None:
        match = match_name(self.scanner, file, self.options)
        if match is None:
            self._pass_over(file)
            return
        name, tail, sighting = match
        if isinstance(sighting, str):
            self.stray[sighting] += 1
            return
        path = self.tree.path(file)
        if fault := fault_of_file(path, file, self.tree.root, name.endings):
            self.skipped.append(SkippedFile(printable(file), fault))
            return
        self._add(name, file, tail, sighting)

    def _add(self, name: Name, file: str, tail: str, entry: Entry) -> None:
        """Add an item; the first file of a folder of frames represents the folder."""
        framed = name.kind == "frames"
        located = str(PurePosixPath(file).parent) if framed else file
        if self.where.setdefault(tail, located) != located:
            paths = f"{self.where[tail]} and {located}"
            raise UserError(
                str(self.tree.root), f"contains two copies of one item, {paths}; give the folder of one copy"
            )
        if tail in self.items:
            return
        item_name = tail if framed else tail + file[len(without_ending(file)) :]
        subject = "/".join(part for part in (self.scanner.kind, entry.part, entry.subject or tail) if part)
        video = str(PurePosixPath(tail).with_name(entry.video)) if entry.video else tail
        self.items[tail] = Item(
            self.tree.path(located),
            item_name,
            name.kind,
            entry.species,
            subject,
            video,
            entry.split,
            entry.extra,
            boxes=self._boxes(located, item_name),
            frame=entry.frame,
            own_subject=not entry.subject,
            bgr=self.options.colour == "bgr",
        )

    def _boxes(self, located: str, whole: str) -> Path | None:
        """Return the file with an item's boxes, next to the item or below the root."""
        above = located[: len(located) - len(whole)]
        candidates = self.scanner.boxes.candidates(whole) if self.scanner.boxes else ()
        for candidate in (place for name in candidates for place in (f"{above}{name}", name)):
            if candidate in self.others and not self.tree.path(candidate).is_symlink():
                return self.tree.path(candidate)
        return None

    def _pass_over(self, file: str) -> None:
        if any(fnmatch(file.casefold(), pattern.casefold()) for pattern in self.scanner.beside):
            return
        if file in self.others:
            self.stray[f"files ending in {printable(ending_of(file)) or 'nothing'}"] += 1
        else:
            self.unknown.append(printable(file))
            self.stray["videos and images with other names"] += 1
