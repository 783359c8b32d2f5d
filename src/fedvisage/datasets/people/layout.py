"""Layouts of datasets of people: photographs by person, lists of pairs and points, and the grammar of file names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.data.lists import Pair, PairList, TemplateLists, read_numbered_pairs
from fedvisage.datasets.dataset import NO_GROUPS, Dataset, read_names, refuse_unknown_names
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import Tree, ending_of, fault_of_file, walk, without_ending
from fedvisage.faces import pictures
from fedvisage.faces.pictures import BYTES_LIMIT

# The photographs of a dataset of people, their contents, and the lists of pairs.


class Content(Protocol):
    """The location of a picture's bytes."""

    @property
    def path(self) -> Path:
        """Return the file that contains the bytes."""
        ...

    def read(self) -> bytes:
        """Return the bytes; raises BadFile or OSError."""
        ...


@dataclass(frozen=True)
class WholeFile:
    """A picture in a file of its own."""

    path: Path

    def read(self) -> bytes:
        """Read the file; raise BadFile if it is too large."""
        with self.path.open("rb") as file:
            content = file.read(BYTES_LIMIT + 1)
        if len(content) > BYTES_LIMIT:
            raise BadFile(f"larger than {BYTES_LIMIT >> 20} MiB")
        return content


@dataclass(frozen=True)
class Photograph:
    """One photograph: its name in the set, its person, and the location of its bytes.

    `original` is its name in the dataset, if that differs. `points` are the five points from the dataset; `box` is the
    region in which to detect the face (left, top, width, height). Both are in pixels of the whole photograph.
    """

    name: str
    person: str
    content: Content
    group: str = NO_GROUPS
    original: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    points: NDArray[np.float64] | None = None
    box: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class PhotographList:
    """The photographs of a dataset by person, small enough to be counted; its pairs by name, or its templates."""

    counts: Mapping[str, int]
    photographs: Callable[[str], Sequence[Photograph]]
    skipped: tuple[SkippedFile, ...] = ()
    pairs: Mapping[str, PairList] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    expected: tuple[int, int] | None = None
    """People and photographs of a complete copy, if known; 0 is unknown."""
    templates: TemplateLists | None = None
    in_order: bool = False
    """True if people are in `counts` in their order in the dataset."""
    splits: Callable[[str, int], Sequence[str]] | None = None
    """The split of each of a person's photographs, if it is not drawn when the set is written."""

    def __len__(self) -> int:
        """Count the photographs."""
        return sum(self.counts.values())


def list_by_person(
    photographs: Iterable[Photograph], skipped: tuple[SkippedFile, ...] = (), **further: Any
) -> PhotographList:
    """Group photographs by person; `further` are other fields of the list."""
    people: dict[str, list[Photograph]] = defaultdict(list)
    for photograph in photographs:
        people[photograph.person].append(photograph)
    return PhotographList(
        {person: len(of_person) for person, of_person in people.items()}, people.__getitem__, skipped, **further
    )


# Readers of benchmarks' lists of pairs, each in its own format, which return folds of pairs.

FOLDS = 10


def cut_into_folds(pairs: Sequence[Pair], folds: int, least: int = 2) -> PairList:
    """Cut a list into folds of nearly equal size; the first ones have one more pair if the division leaves a remainder.

    There are fewer folds if one would have fewer than `least` pairs.
    """
    folds = max(1, min(folds, len(pairs) // least))
    size, remainder = divmod(len(pairs), folds)
    cuts = [number * size + min(number, remainder) for number in range(folds + 1)]
    return [pairs[begin:end] for begin, end in pairwise(cuts)]


def find_list(tree: Tree, ending: str) -> str | None:
    """Return the list whose path has this ending, in any folder."""
    matches = [name for name in tree.files if name == ending or name.endswith(f"/{ending}")]
    if len(matches) > 1:
        raise UserError(
            str(tree.root), f"contains two lists, {matches[0]} and {matches[1]}; give the folder of one copy"
        )
    return matches[0] if matches else None


def read_lfw_pairs(tree: Tree, name: str, prefix: str = "") -> PairList:
    """Read a list in LFW's form; `prefix` is prepended to every person's name."""
    path = tree.path(name)
    if fault := fault_of_file(path, name, tree.root, (path.suffix.lower(),)):
        raise UserError(str(path), fault)
    pairs, same, fold = read_numbered_pairs(path)
    for place, ((first_name, first), (second_name, second)) in enumerate(pairs):
        if (first_name == second_name) != same[place]:
            raise UserError(str(path), f"says that {first_name} {first} and {second_name} {second} are two people")
    renamed = [
        ((prefix + first_name, first), (prefix + second_name, second))
        for (first_name, first), (second_name, second) in pairs
    ]
    return [[renamed[place] for place in np.flatnonzero(fold == number)] for number in np.unique(fold)]


def read_two_line_pairs(tree: Tree, name: str, people: Mapping[str, tuple[str, int]]) -> list[tuple[int, Pair]]:
    """Read a list with a picture and a number per line, two lines per pair; return the numbers with the pairs.

    `people` maps the name of a file, without its ending, to its person and number. An unknown name is kept: the pair is
    left out when the list is used, and counted.
    """
    lines, place = tree.lines(name), str(tree.path(name))
    if not lines or len(lines) % 2:
        raise UserError(place, f"has {len(lines)} lines; each pair needs two: is it cut off?")
    numbered_pairs = []
    for (line_number, first), (_, second) in zip(lines[::2], lines[1::2], strict=True):
        halves = []
        for at_line, line in ((line_number, first), (line_number + 1, second)):
            file, _, digits = line.replace("\t", " ").rpartition(" ")
            if not file or not digits.isdecimal():
                raise UserError(f"{place}, line {at_line}", "is not an image with a number")
            halves.append((without_ending(file.strip().rpartition("/")[2]), int(digits)))
        (first_file, number), (second_file, second_number) = halves
        if number != second_number:
            raise UserError(
                f"{place}, line {line_number}", f"and the next give {number} and {second_number} for the same pair"
            )
        pair = people.get(first_file, (first_file, 0)), people.get(second_file, (second_file, 0))
        if (pair[0][0] == pair[1][0]) != (number > 0):
            contradiction = "one person, and their names two" if number else "two people, and their names one"
            raise UserError(
                f"{place}, line {line_number}", f"says that {first_file} and {second_file} are {contradiction}"
            )
        numbered_pairs.append((number, pair))
    return numbered_pairs


# Readers of lists with the five points of photographs.

_TRIED = 1000
"""Number of lines for detecting the order of a list's numbers."""

_ENOUGH = 0.8
"""Minimum share of these lines with plausible faces in that order: some heads are turned."""

Points = NDArray[np.float64]


def points_of(tree: Tree, lists: Sequence[str]) -> Mapping[str, Points]:
    """Read lists whose lines end in ten numbers: five points, or five horizontal and five vertical coordinates.

    A photograph is identified by the end of the first field: its folder and its name without ending.
    """
    points: dict[str, Points] = {}
    for name in lists:
        place, rows = tree.path(name), dict[str, Points]()
        for index, (number, line) in enumerate(tree.lines(name)):
            fields = line.replace(",", " ").replace('"', " ").split()
            try:
                values = np.array([float(cell) for cell in fields[-10:]])
            except ValueError:
                values = np.empty(0)
            if len(fields) > 10 and len(values) == 10 and np.isfinite(values).all():
                photograph = without_ending(fields[0]) if ending_of(fields[0]) in pictures.ENDINGS else fields[0]
                rows["/".join(photograph.split("/")[-2:])] = values
            elif index > 0:  # the first line may be the header of the table
                raise UserError(f"{place}, line {number}", "must be a photograph's name and ten numbers")
        if not rows:
            raise UserError(str(place), "has no points")
        sample = np.array([*islice(rows.values(), _TRIED)])
        by_pairs, by_columns = (
            _share_of_faces(order) for order in (sample.reshape(-1, 5, 2), sample.reshape(-1, 2, 5).transpose(0, 2, 1))
        )
        if by_pairs < _ENOUGH and by_columns < _ENOUGH:
            raise UserError(
                str(place),
                "has ten numbers per line that are not the five points of faces: eyes,"
                " nose, corners of the mouth, from left to right and from top to bottom",
            )
        points |= {
            photograph: row.reshape(5, 2) if by_pairs >= by_columns else row.reshape(2, 5).T
            for photograph, row in rows.items()
        }
    return points


def _share_of_faces(points: Points) -> float:
    """Return the share of points in the order of a face: eyes above the mouth, the left of each pair first."""
    x, y = points[..., 0], points[..., 1]
    upright = (x[:, 0] < x[:, 1]) & (x[:, 3] < x[:, 4]) & (y[:, :2].max(axis=1) < y[:, 3:].min(axis=1))
    return float(upright.mean())


@dataclass(frozen=True, kw_only=True)
class Layout(Dataset):
    """A dataset of people: which points, boxes and lists it includes, and the function that lists its photographs."""

    scan: Callable[[Layout, Path], PhotographList]
    aligned: bool = False
    """True if its images are already aligned by five points, which is not checked."""
    benchmark: bool = False
    """True for a benchmark, which evaluates models: it holds out no person."""
    points: bool = False
    """True if it includes five points of each photograph."""
    by_points: bool = False
    """True if its photographs are always aligned by these points, because a detector may miss faces in such crops."""
    distinct: bool = False
    """True if a photograph whose content repeats an earlier one is skipped."""
    boxed: bool = False
    """True if it includes a box of each face, around which the face is detected."""
    counts: tuple[int, int] | None = None
    """People and photographs of a complete copy."""
    sign: str = ""
    """A regular expression for the ends of its photographs' paths, without ending, which identifies a folder."""
    list_beside: str = ""
    """A list that identifies it as well, if other datasets have such names, too."""
    file: tuple[str, bytes] | None = None
    """The ending of a file that contains a complete dataset, and the possible first bytes."""
    pack: Callable[[Path], None] | None = None
    """Writes a small copy of a dataset that stores its pictures in one file."""

    @property
    def whole_copy(self) -> tuple[str, ...]:
        """The counts of a complete copy."""
        totals = zip(self.counts or (0, 0), ("people", "images"), strict=True)
        text = ", ".join(f"{count:,} {what}" for count, what in totals if count)
        return (text,) if text else ()


def photographs_of(layout: Layout, source: Path) -> tuple[Tree, list[Photograph], tuple[SkippedFile, ...]]:
    """List the photographs below a root by their names, in order; refuse a folder that is not a copy of it."""
    tree = walk(source)
    files = read_names(layout, tree)
    unknown = [printable(file) for file in files.unknown if ending_of(file) in pictures.ENDINGS]
    refuse_unknown_names(layout, tree.root, unknown, len(files.known), "images")
    skipped = sorted(files.skipped + files.left_out, key=lambda entry: entry.path)
    skipped += [SkippedFile(name, f"not a name of {layout.title}") for name in unknown]
    photographs = []
    for key, file in sorted(files.known.items()):
        ending, entry, content = ending_of(file.path), file.entry, WholeFile(tree.path(file.path))
        person, original = f"{layout.kind}/{entry.subject}", file.tail + ending
        photographs.append(Photograph(key + ending, person, content, entry.group, original, entry.extra))
    return tree, photographs, tuple(skipped)


def plain_listing(layout: Layout, source: Path) -> PhotographList:
    """List a dataset whose names contain all information."""
    _, photographs, skipped = photographs_of(layout, source)
    return list_by_person(photographs, skipped, columns=layout.columns, expected=layout.counts)
