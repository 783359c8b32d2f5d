"""What a dataset of people is called and how it lies; and the layouts whose files' names say who is on a photograph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedvisage.datasets.importers import pictures
from fedvisage.datasets.importers.report import Skipped, printable
from fedvisage.datasets.people.album import EVERYBODY, Album, Shot, WholeFile, grouped
from fedvisage.datasets.scanners.example import Example
from fedvisage.datasets.scanners.grammar import Grammar
from fedvisage.datasets.scanners.tree import Tree, ending_of, unusable, walk, without_ending
from fedvisage.errors import UserError

UNKNOWN_SHARE = 0.01
"""More images than this share with names that the dataset does not have: another dataset, or another version."""

_SHOWN = 5


@dataclass(frozen=True)
class Layout:
    """A dataset of people: where it is asked for, what it looks like, and what lists its photographs."""

    kind: str
    title: str
    page: str
    expects: str
    scan: Callable[[Layout, Path], Album]
    aligned: bool = False
    """Whether its images are crops that were aligned by five points; this is taken on trust."""
    benchmark: bool = False
    """Whether it is there to judge models: nobody of it is held out."""
    points: bool = False
    """Whether five points of each photograph come with it."""
    by_points: bool = False
    """Whether its photographs are always aligned by these: they are crops in which a detector may find no face."""
    boxed: bool = False
    """Whether a box comes with each face, around which it is sought."""
    counts: tuple[int, int] | None = None
    """People and photographs of a whole copy."""
    sign: str = ""
    """An expression for the ends of its photographs' paths, without the file's ending: a folder of it is known by them.
    """
    list_beside: str = ""
    """A list that must lie beside them for that, where other folders have such names, too."""
    file: tuple[str, bytes] | None = None
    """Where one file holds a whole dataset: its ending, and the bytes with one of which it begins."""
    columns: tuple[str, ...] = ()
    """What is said beyond the known columns."""
    example: tuple[Example, ...] = ()
    """A small copy, for tests and for people who want to see the layout."""
    pack: Callable[[Path], None] | None = None
    """What writes a small copy whose pictures lie in one file."""

    @property
    def whole_copy(self) -> tuple[str, ...]:
        """Say how much a whole copy has."""
        known = zip(self.counts or (0, 0), ("people", "images"), strict=True)
        said = ", ".join(f"{count:,} {what}" for count, what in known if count)
        return (said,) if said else ()


@dataclass(frozen=True)
class Says:
    """What a name says: who it is, of which group, and what the photograph is to be called where lists ask for it."""

    person: str
    group: str = EVERYBODY
    name: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """How photographs are called, without the file's ending, and what that says; or why one is left out."""

    grammar: Grammar
    read: Callable[[Mapping[str, str]], Says | str]


def shots_of(layout: Layout, tree: Tree, *patterns: Pattern) -> tuple[list[Shot], tuple[Skipped, ...]]:
    """List the photographs below a root by their names, in order; refuse what is no copy of this dataset."""
    found: dict[str, Shot] = {}
    skipped: list[Skipped] = []
    others: list[str] = []
    for file in tree.files:
        if ending_of(file) not in pictures.ENDINGS:
            continue
        if (said := _said(without_ending(file), patterns)) is None:
            others.append(printable(file))
        elif (fault := _fault(said[1], tree, file)) is not None:
            skipped.append(Skipped(printable(file), fault))
        else:
            _add(found, tree, file, said[0], said[1])  # type: ignore[arg-type]  # a text is a fault
    if not found:
        wanted = ", ".join(f"{one.grammar.template}.jpg" for one in patterns)
        raise UserError(str(tree.root), f"is no {layout.title}: looked for {wanted}; {tree.listing()}{tree.hints()}")
    if len(others) > UNKNOWN_SHARE * (len(found) + len(others)):
        shown = ", ".join(others[:_SHOWN])
        message = f"{len(others)} of {len(found) + len(others)} images have names that {layout.title} does not have"
        raise UserError(str(tree.root), f"{message}: {shown}; remove them, or look for another kind with"
                        " `fedvisage data kinds`")  # fmt: skip
    skipped += [Skipped(name, f"no name of {layout.title}") for name in others]
    return [
        replace(one, person=f"{layout.kind}/{one.person}") for _, one in sorted(found.items())
    ], tuple(skipped)  # fmt: skip


def _said(path: str, patterns: tuple[Pattern, ...]) -> tuple[str, Says | str] | None:
    for pattern in patterns:
        if parsed := pattern.grammar.parse(path):
            return parsed.name, pattern.read(parsed.fields)
    return None


def _fault(said: Says | str, tree: Tree, file: str) -> str | None:
    return said if isinstance(said, str) else unusable(tree.path(file), file, tree.root, pictures.ENDINGS)


def _add(found: dict[str, Shot], tree: Tree, file: str, tail: str, said: Says) -> None:
    path, name = tree.path(file), (said.name or tail) + ending_of(file)
    key = said.name or tail
    if key in found:
        both = f"{found[key].content.path.relative_to(tree.root)} and {file}"
        raise UserError(str(tree.root), f"holds two copies of one photograph, {both}; give the folder of one copy")
    found[key] = Shot(name, said.person, WholeFile(path), said.group, tail + ending_of(file), said.extra)


def plain_album(layout: Layout, source: Path, *patterns: Pattern) -> Album:
    """List a dataset whose names say everything."""
    shots, skipped = shots_of(layout, walk(source), *patterns)
    counts, of = grouped(shots)
    return Album(counts, of, skipped, columns=layout.columns, expected=layout.counts)
