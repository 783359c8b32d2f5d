"""What a dataset of people is called and how it lies; and the layouts whose files' names say who is on a photograph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.data.lists import Pair, PairList, TemplateLists, read_numbered
from fedvisage.datasets.pad.item import Example, Grammar
from fedvisage.datasets.pad.tree import Tree, ending_of, unusable, walk, without_ending
from fedvisage.datasets.report import Skipped
from fedvisage.faces import pictures
from fedvisage.faces.pictures import BYTES_LIMIT

# What a layout says of a dataset of people: whose photographs there are, where they lie, and which pairs are asked.


EVERYBODY = "all"
"""The group of everyone in a set that has no groups."""


class Content(Protocol):
    """Where the bytes of a picture are."""

    @property
    def path(self) -> Path:
        """Return the file that they are in."""
        ...

    def read(self) -> bytes:
        """Return them; raises BadFile or OSError."""
        ...


@dataclass(frozen=True)
class WholeFile:
    """A picture in a file of its own."""

    path: Path

    def read(self) -> bytes:
        """Read the file, if it is not too large."""
        with self.path.open("rb") as file:
            content = file.read(BYTES_LIMIT + 1)
        if len(content) > BYTES_LIMIT:
            raise BadFile(f"larger than {BYTES_LIMIT >> 20} MiB")
        return content


@dataclass(frozen=True)
class Shot:
    """One photograph: its name in the set, who is on it, and where its bytes are.

    `original` is the name that it has in the dataset, where that is another one. `points` are the five points that came
    with it, `box` is where the face is sought (left, top, width, height), in whole photographs.
    """

    name: str
    person: str
    content: Content
    group: str = EVERYBODY
    original: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    points: NDArray[np.float64] | None = None
    box: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Album:
    """The photographs of a dataset by person, who are few enough to be counted; its pairs by name, or its templates."""

    counts: Mapping[str, int]
    shots: Callable[[str], Sequence[Shot]]
    skipped: tuple[Skipped, ...] = ()
    pairs: Mapping[str, PairList] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    expected: tuple[int, int] | None = None
    """People and photographs of a whole copy, where that is known; 0 is not known."""
    templates: TemplateLists | None = None
    in_order: bool = False
    """Whether people stand in `counts` in the order in which they come in the dataset."""
    splits: Callable[[str, int], Sequence[str]] | None = None
    """The split of each of a person's photographs, where it is not drawn when the set is written."""

    def __len__(self) -> int:
        """Count the photographs."""
        return sum(self.counts.values())


def grouped(shots: Iterable[Shot]) -> tuple[dict[str, int], Callable[[str], Sequence[Shot]]]:
    """Put photographs together by person: counts, and what returns a person's photographs."""
    people: dict[str, list[Shot]] = defaultdict(list)
    for one in shots:
        people[one.person].append(one)
    return {person: len(some) for person, some in people.items()}, people.__getitem__


# Lists of pairs as benchmarks have them, each in a form of its own, turned into folds of pairs.


FOLDS = 10


def consecutive(pairs: Sequence[Pair], folds: int, least: int = 2) -> PairList:
    """Cut a list into folds as equal as can be; the first ones have one more where it does not come out even.

    There are fewer folds where one would have fewer than `least` pairs.
    """
    folds = max(1, min(folds, len(pairs) // least))
    size, rest = divmod(len(pairs), folds)
    cuts = [number * size + min(number, rest) for number in range(folds + 1)]
    return [pairs[begin:end] for begin, end in pairwise(cuts)]


def named(tree: Tree, ending: str) -> str | None:
    """Return the list whose path ends so, wherever it lies."""
    found = [name for name in tree.files if name == ending or name.endswith(f"/{ending}")]
    if len(found) > 1:
        raise UserError(str(tree.root), f"holds two lists, {found[0]} and {found[1]}; give the folder of one copy")
    return found[0] if found else None


def listed_as_lfw(tree: Tree, name: str, prefix: str = "") -> PairList:
    """Read a list in LFW's form; `prefix` stands before every name of a person in the set."""
    path = tree.path(name)
    if fault := unusable(path, name, tree.root, (path.suffix.lower(),)):
        raise UserError(str(path), fault)
    pairs, same, fold = read_numbered(path)
    for place, ((one, first), (other, second)) in enumerate(pairs):
        if (one == other) != same[place]:
            raise UserError(str(path), f"says that {one} {first} and {other} {second} are two people")
    renamed = [((prefix + one, first), (prefix + other, second)) for (one, first), (other, second) in pairs]
    return [[renamed[place] for place in np.flatnonzero(fold == number)] for number in np.unique(fold)]


def listed_in_twos(tree: Tree, name: str, people: Mapping[str, tuple[str, int]]) -> list[tuple[int, Pair]]:
    """Read a list that has a picture and a number in each line, two lines a pair: the numbers, and the pairs.

    `people` says by the name of a file, without its ending, whose picture it is. A name that it lacks stays as it is:
    the pair is left out where the list is used, and counted.
    """
    lines, place = tree.lines(name), str(tree.path(name))
    if not lines or len(lines) % 2:
        raise UserError(place, f"has {len(lines)} lines; a pair has two: is it cut off?")
    found = []
    for (at, first), (_, second) in zip(lines[::2], lines[1::2], strict=True):
        (one, number), (other, again) = (
            _in_two(first, f"{place}, line {at}"),
            _in_two(second, f"{place}, line {at + 1}"),
        )
        if number != again:
            raise UserError(f"{place}, line {at}", f"and the next say {number} and {again} of one pair")
        pair = people.get(one, (one, 0)), people.get(other, (other, 0))
        if (pair[0][0] == pair[1][0]) != (number > 0):
            said = "one person, and their names two" if number else "two people, and their names one"
            raise UserError(f"{place}, line {at}", f"says that {one} and {other} are {said}")
        found.append((number, pair))
    return found


def _in_two(line: str, place: str) -> tuple[str, int]:
    name, _, number = line.replace("\t", " ").rpartition(" ")
    if not name or not number.isdecimal():
        raise UserError(place, "is no picture with a number")
    return without_ending(name.strip().rpartition("/")[2]), int(number)


# Reads the five points of photographs from lists that come with datasets.


_TRIED = 1000
"""Lines by which the order of a list's numbers is told."""

_ENOUGH = 0.8
"""The share of them that must be faces in that order: heads are turned."""

Points = NDArray[np.float64]


def points_of(tree: Tree, lists: Sequence[str]) -> Mapping[str, Points]:
    """Read lists whose lines end in ten numbers: five points, or five places across and five down.

    A photograph is known by its folder and its name without ending, which the first field ends in.
    """
    found: dict[str, Points] = {}
    for name in lists:
        rows = dict(_rows(tree, name))
        some = np.array([*islice(rows.values(), _TRIED)])
        pairs, columns = some.reshape(-1, 5, 2), some.reshape(-1, 2, 5).transpose(0, 2, 1)
        if _faces(pairs) < _ENOUGH and _faces(columns) < _ENOUGH:
            raise UserError(str(tree.path(name)), "has ten numbers a line that are not the five points of faces: eyes,"
                            " nose, corners of the mouth, from left to right and from above")  # fmt: skip
        by_pairs = _faces(pairs) >= _faces(columns)
        found |= {one: row.reshape(5, 2) if by_pairs else row.reshape(2, 5).T for one, row in rows.items()}
    return found


def _rows(tree: Tree, name: str) -> list[tuple[str, Points]]:
    rows = []
    for at, (number, line) in enumerate(tree.lines(name)):
        fields = line.replace(",", " ").replace('"', " ").split()
        try:
            values = np.array([float(one) for one in fields[-10:]])
        except ValueError:
            values = np.empty(0)
        if len(fields) < 11 or len(values) != 10 or not np.isfinite(values).all():
            if at == 0:
                continue  # the names of columns
            raise UserError(f"{tree.path(name)}, line {number}", "must be a photograph's name and ten numbers")
        whole = without_ending(fields[0]) if ending_of(fields[0]) in pictures.ENDINGS else fields[0]
        rows.append(("/".join(whole.split("/")[-2:]), values))
    if not rows:
        raise UserError(str(tree.path(name)), "has no points")
    return rows


def _faces(points: Points) -> float:
    """Return the share of points that stand as a face's do: eyes above the mouth, each with its left one first."""
    x, y = points[..., 0], points[..., 1]
    upright = (x[:, 0] < x[:, 1]) & (x[:, 3] < x[:, 4]) & (y[:, :2].max(axis=1) < y[:, 3:].min(axis=1))
    return float(upright.mean())


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
