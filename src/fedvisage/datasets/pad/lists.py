"""Lists that come with a dataset and have a label column: compared with the names, never believed.

The same set's lists have 1, 0 and -1 for bona fide in turn, so a number alone says nothing. The name decides; a list
that says otherwise is an error, and one that says otherwise throughout is read the wrong way round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import UserError
from fedvisage.base.progress import counted
from fedvisage.datasets.pad.item import Item
from fedvisage.datasets.pad.tree import Tree

# Face boxes that come with a dataset: where they lie, and how their rows are written.
#
# A row is a frame's number, counted from 0, and four numbers, apart by blanks or commas. Two forms exist and look
# alike:
# left, top, width, height, and two corners. A row of zeros, or none, means that the frame has no box.
#
# A third form belongs to images and has no frame number: left, top, width, height and a score, as they would be if
# the
# image had 224 × 224 pixels.


Box = npt.NDArray[np.float64]
"""Left, top, width and height in pixels."""

Form = Literal["sides", "corners", "scaled"]
SCALED_SIDE = 224
"""Pixels of both sides of the image that scaled boxes are for."""

_SEPARATOR = re.compile(r"[\s,]+")
_BYTES_LIMIT = 16 << 20


@dataclass(frozen=True)
class BoxFiles:
    """Where a video's boxes lie, with ``{name}`` for its name without ending and ``{file}`` with it, and their form."""

    places: tuple[str, ...]
    form: Form

    def candidates(self, file: str) -> Iterator[str]:
        """Yield where the boxes of a file may lie, relative to where its own name begins."""
        name = str(PurePosixPath(file).with_suffix(""))
        return (place.format(name=name, file=file) for place in self.places)


def read_boxes(path: Path, form: Form) -> dict[int, Box]:
    """Read the boxes of a video by frame; what is no box is left out, and its frame has none."""
    if path.stat().st_size > _BYTES_LIMIT:
        return {}
    boxes = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        values = _SEPARATOR.split(line.strip())
        try:
            frame, *corners = (float(value) for value in (["0", *values[:4]] if form == "scaled" else values[:5]))
        except ValueError:
            continue
        box = _box(corners, form) if len(corners) == 4 else None
        if box is not None and np.isfinite(frame):
            boxes[int(frame)] = box
    return boxes


def in_pixels(box: Box, form: Form, width: int, height: int) -> Box | None:
    """Return the part of a box that lies inside an image, in its pixels; None if that is less than two each way."""
    across, down = (width / SCALED_SIDE, height / SCALED_SIDE) if form == "scaled" else (1.0, 1.0)
    left, right = np.clip(np.array([box[0], box[0] + box[2]]) * across, 0, width)
    top, bottom = np.clip(np.array([box[1], box[1] + box[3]]) * down, 0, height)
    return np.array([left, top, right - left, bottom - top]) if min(right - left, bottom - top) >= 2 else None


def write_row(frame: int, box: Box, form: Form) -> str:
    """Write a box as such a file has it."""
    x, y, w, h = (round(float(value)) for value in box)
    if form == "scaled":
        return f"{x} {y} {w} {h} 0.99"
    return f"{frame},{x},{y},{x + w},{y + h}" if form == "corners" else f"{frame} {x} {y} {w} {h}"


def _box(values: list[float], form: Form) -> Box | None:
    x, y, third, fourth = values
    box = np.array([x, y, third - x, fourth - y] if form == "corners" else values)
    return box if np.isfinite(box).all() and (box[2:] > 1).all() else None


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
    """From a line to the name of an item and its label, or None if the line is not of this form.

    A line that heads a table has an empty name.
    """
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
        if not key:
            continue
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
