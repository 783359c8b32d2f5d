"""Lists that come with a dataset and have a label column: compared with the names, never believed.

The same set's lists have 1, 0 and -1 for bona fide in turn, so a number alone says nothing. The name decides; a list
that says otherwise is an error, and one that says otherwise throughout is read the wrong way round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from fedvisage.datasets.scanners.item import Item
from fedvisage.datasets.scanners.tree import Tree
from fedvisage.errors import UserError
from fedvisage.progress import counted

WORDS = ("an attack", "bona fide")


def stem_of(item: Item) -> str:
    """Return what many lists call an item: its file's name without folders and ending."""
    return PurePosixPath(item.video).name


@dataclass(frozen=True)
class LabelLists:
    """Which files are lists, how a line names an item and labels it, and what the labels usually mean."""

    files: str
    """An expression for the end of a list's path."""
    read: Callable[[str], tuple[str, str] | None]
    """From a line to the name of an item and its label, or None if the line is not of this form."""
    live: Callable[[str], bool]
    """Whether a label is bona fide, by the distributor's convention."""
    key: Callable[[Item], str] = stem_of
    """What the lists call an item."""

    def of(self, tree: Tree) -> list[str]:
        """Return the lists of a dataset."""
        expression = re.compile(rf"(?:.*/)?(?:{self.files})", re.ASCII | re.IGNORECASE)
        return [name for name in tree.files if expression.fullmatch(name)]


def check_lists(lists: LabelLists, tree: Tree, items: Iterable[Item], live: str | None) -> tuple[str, ...]:
    """Compare all lists with the names; return what there is to note, such as listed items that are not here."""
    classes = {lists.key(item): item.label for item in items}
    absent: set[str] = set()
    names = lists.of(tree)
    for name in names:
        absent |= _check(lists, tree, name, classes, live)
    notes = [f"labels in lists agree with the names: {counted(len(names), 'list')}"] if names else []
    if absent:
        notes.append(f"{counted(len(absent), 'name')} in lists without a file here, such as {min(absent)}")
    return tuple(notes)


def _check(lists: LabelLists, tree: Tree, name: str, classes: Mapping[str, int], live: str | None) -> set[str]:
    """Compare one list; return the items that it names and that are not here."""
    place, wrong, absent, right = str(tree.path(name)), [], set(), 0
    meant: Counter[str] = Counter()  # the labels of what is bona fide by name
    for number, line in tree.lines(name):
        read = lists.read(line)
        if read is None:
            raise UserError(place, f"line {number}: {line[:80]!r} is not a line of such a list")
        key, token = read
        if key not in classes:
            absent.add(key)
            continue
        said = token == live if live is not None else lists.live(token)
        if classes[key]:
            meant[token] += 1
        if said != bool(classes[key]):
            wrong.append((number, key, token))
        else:
            right += 1
    if wrong:
        raise UserError(place, _complaint(wrong, right, meant, classes))
    return absent


def _complaint(wrong: list[tuple[int, str, str]], right: int, meant: Counter[str], classes: Mapping[str, int]) -> str:
    if not right and meant:
        token = meant.most_common(1)[0][0]
        return (
            f"every label contradicts the names, from line {wrong[0][0]} on: this list uses {token} = live;"
            f" pass --labels live={token}"
        )
    number, key, token = wrong[0]
    also = f"; {counted(len(wrong) - 1, 'more line', 'more lines')} wrong" if len(wrong) > 1 else ""
    return f"line {number}: {key} is labelled {token}, but by its name it is {WORDS[classes[key]]}{also}"
