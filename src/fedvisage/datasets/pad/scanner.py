"""What a scanner is, and how most of them scan: by the names of files, one grammar after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from fedvisage.base.errors import UserError, printable
from fedvisage.datasets.pad.item import Choices, Clip, Example, Grammar, Item, Kind, Listing, Sighting
from fedvisage.datasets.pad.lists import BoxFiles, LabelLists, check_lists
from fedvisage.datasets.pad.tree import (
    ARRAY_ENDINGS,
    MEDIA_ENDINGS,
    VIDEO_ENDINGS,
    Tree,
    ending_of,
    unusable,
    without_ending,
)
from fedvisage.datasets.report import Skipped
from fedvisage.faces import pictures

UNKNOWN_SHARE = 0.01
"""More media files than this share with names that the dataset does not have: another dataset, or another version."""

_EXAMPLES = 5
_ENDINGS: dict[Kind, tuple[str, ...]] = {
    "video": VIDEO_ENDINGS,
    "image": pictures.ENDINGS,
    "frames": pictures.ENDINGS,
    "arrays": ARRAY_ENDINGS,
}
COLOURS = ("rgb", "bgr")
"""Which colour arrays have first."""

Count = tuple[int, int]
"""Bona fide items and attacks."""


@dataclass(frozen=True)
class Name:
    """One kind of names: their grammar, what they say, and whether they name videos, images or folders of frames."""

    grammar: Grammar
    read: Callable[[Mapping[str, str], Choices], Sighting | str]
    kind: Kind = "video"

    @property
    def endings(self) -> tuple[str, ...]:
        """How such files end."""
        return _ENDINGS[self.kind]


@dataclass(frozen=True)
class Scanner:
    """A dataset: what its files are called and mean, and what is known of a whole copy."""

    kind: str
    title: str
    page: str
    """Where it is asked for, and its licence read."""
    expects: str
    """The layout, as it is shown to somebody who looks for the right root."""
    names: tuple[Name, ...] = ()
    official: bool = True
    """Whether it is a published dataset, with a split of its authors and known counts."""
    columns: tuple[str, ...] = ()
    """What items say beyond the known columns."""
    counts: Mapping[str, Count] = field(default_factory=dict)
    """Videos in a whole copy by `Item.place`; ``all`` is the whole copy, also where items have a split."""
    beside: tuple[str, ...] = ()
    """Patterns for the paths of known files that are no items, such as ``*.face``: nobody needs to hear of them."""
    lists: LabelLists | None = None
    boxes: BoxFiles | None = None
    check: Callable[[Tree, Sequence[Item]], None] | None = None
    """Further checks of what was found; raises UserError."""
    enrolment: bool = False
    released: bool = False
    """Whether lists were released with a known mistake, which can be asked for."""
    of: tuple[str, ...] = ()
    """Datasets whose frames it holds, where it is no dataset of its own."""
    turned: bool = False
    """Whether some videos stand upside down: where no face is found, it is sought at 180 degrees."""
    example: tuple[Example, ...] = ()
    """A small copy, for tests and for people who want to see the layout."""
    further: Callable[[int], tuple[Clip, ...]] | None = None
    """The clips of one more person of such a copy, by a number from 0: bona fide, and as what studies divide by."""
    crowd: Callable[[int], Sequence[Example]] | None = None
    """A copy with so many people, where a dataset has who enrols, comes back, and is attacked."""
    scan: Callable[[Scanner, Tree, Choices], Listing] | None = None
    """How items are found; by their names unless a dataset needs another way."""

    @property
    def whole_copy(self) -> tuple[str, ...]:
        """Say how much a whole copy has, by place."""
        return tuple(
            f"{place}: {real:,} bona fide, {attacks:,} attacks" for place, (real, attacks) in self.counts.items()
        )

    def list(self, tree: Tree, choices: Choices) -> Listing:
        """Scan a tree and check what was found."""
        self._check_choices(choices)
        found = (self.scan or by_name)(self, tree, choices)
        if self.check:
            self.check(tree, found.items)
        return found

    def _check_choices(self, choices: Choices) -> None:
        if choices.enroll and not self.enrolment:
            raise UserError("--enroll", f"{self.title} has no enrolment videos")
        if choices.live is not None and self.lists is None:
            raise UserError("--labels", f"{self.title} has no lists with labels that are read")
        if choices.released and not self.released:
            raise UserError("--labels", f"no lists that were released with FedSIS call anything of {self.title} wrong")
        if choices.of is not None and choices.of not in self.of:
            known = f"choose one of {', '.join(self.of)}" if self.of else f"{self.title} is a dataset of its own"
            raise UserError("--of", f"{choices.of!r} cannot be named here; {known}")
        if choices.colour is not None and (choices.colour not in COLOURS or not self._has_arrays):
            known = f"choose one of {', '.join(COLOURS)}" if self._has_arrays else f"{self.title} has no arrays"
            raise UserError("--colour", f"{choices.colour!r} cannot be chosen; {known}")

    @property
    def _has_arrays(self) -> bool:
        return any(name.kind == "arrays" for name in self.names)


def sight(scanner: Scanner, file: str, choices: Choices) -> tuple[Name, str, Sighting | str] | None:
    """Return what the name of a file says, with the end of its path that says it; None if no grammar has it."""
    for name in scanner.names:
        if ending_of(file) not in name.endings:
            continue
        path = str(PurePosixPath(file).parent) if name.kind == "frames" else without_ending(file)
        if parsed := name.grammar.parse(path):
            return name, parsed.name, name.read(parsed.fields, choices)
    return None


def by_name(scanner: Scanner, tree: Tree, choices: Choices) -> Listing:
    """Read every file's name; count what is no item by reason, and refuse what is no copy of this dataset."""
    seen = _Seen(scanner, tree, choices)
    for file in tree.files:
        seen.take(file)
    if not seen.items:
        raise UserError(str(tree.root), f"is no {scanner.title}: looked for {_wanted(scanner)}; "
                        f"{tree.listing()}{tree.hints()}")  # fmt: skip
    seen.refuse_many_unknown()
    items = [seen.items[key] for key in sorted(seen.items)]
    notes = check_lists(scanner.lists, tree, items, choices.live) if scanner.lists else ()
    if any(item.kind == "arrays" for item in items) and choices.colour is None:
        notes = (*notes, "arrays are read as red, green, blue; --colour bgr reads them the other way round")
    if tree.hidden:
        seen.stray["hidden files"] += tree.hidden
    return Listing(items, tuple(seen.skipped), seen.stray, tuple(seen.unknown[:_EXAMPLES]), notes)


@dataclass
class _Seen:
    """What the names have said so far."""

    scanner: Scanner
    tree: Tree
    choices: Choices
    items: dict[str, Item] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)  # from an item's key to where it lies
    skipped: list[Skipped] = field(default_factory=list)
    stray: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    others: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.others = {name for name in self.tree.files if ending_of(name) not in MEDIA_ENDINGS}

    def take(self, file: str) -> None:
        sighted = sight(self.scanner, file, self.choices)
        if sighted is None:
            self._pass_over(file)
            return
        name, tail, said = sighted
        if isinstance(said, str):
            self.stray[said] += 1
            return
        path = self.tree.path(file)
        if fault := unusable(path, file, self.tree.root, name.endings):
            self.skipped.append(Skipped(printable(file), fault))
            return
        self._add(name, file, tail, said)

    def _add(self, name: Name, file: str, tail: str, said: Sighting) -> None:
        """Note an item; the first file of a folder of frames stands for the folder."""
        framed = name.kind == "frames"
        located = str(PurePosixPath(file).parent) if framed else file
        if self.where.setdefault(tail, located) != located:
            both = f"{self.where[tail]} and {located}"
            raise UserError(str(self.tree.root), f"holds two copies of one item, {both}; give the folder of one copy")
        if tail in self.items:
            return
        whole = tail if framed else tail + file[len(without_ending(file)) :]
        subject = "/".join(part for part in (self.scanner.kind, said.part, said.subject or tail) if part)
        video = str(PurePosixPath(tail).with_name(said.video)) if said.video else tail
        self.items[tail] = Item(
            self.tree.path(located), whole, name.kind, said.species, subject, video, said.split, said.extra,
            boxes=self._boxes(located, whole), frame=said.frame, own_subject=not said.subject,
            bgr=self.choices.colour == "bgr",
        )  # fmt: skip

    def _boxes(self, located: str, whole: str) -> Path | None:
        """Return the file with an item's boxes, beside it or below the root."""
        above = located[: len(located) - len(whole)]
        candidates = self.scanner.boxes.candidates(whole) if self.scanner.boxes else ()
        for candidate in (place for one in candidates for place in (f"{above}{one}", one)):
            if candidate in self.others and not self.tree.path(candidate).is_symlink():
                return self.tree.path(candidate)
        return None

    def _pass_over(self, file: str) -> None:
        if any(fnmatch(file.casefold(), pattern.casefold()) for pattern in self.scanner.beside):
            return
        if file in self.others:
            self.stray[f"files that end in {printable(ending_of(file)) or 'nothing'}"] += 1
        else:
            self.unknown.append(printable(file))
            self.stray["videos and images with other names"] += 1

    def refuse_many_unknown(self) -> None:
        count = len(self.items) + len(self.unknown)
        if len(self.unknown) > UNKNOWN_SHARE * count:
            shown = ", ".join(self.unknown[:_EXAMPLES])
            raise UserError(
                str(self.tree.root),
                f"{len(self.unknown)} of {count} videos and images have names that {self.scanner.title} does not have:"
                f" {shown}; remove them, or look for another kind in `fedvisage data kinds`",
            )


def _wanted(scanner: Scanner) -> str:
    return ", ".join(f"{name.grammar.template} ({name.endings[0]}, …)" for name in scanner.names)
