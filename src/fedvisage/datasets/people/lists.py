"""Lists of pairs as benchmarks have them, each in a form of its own, turned into folds of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from fedvisage.data.pairs import Pair, PairList, read_numbered
from fedvisage.datasets.scanners.tree import Tree, unusable, without_ending
from fedvisage.errors import UserError

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
