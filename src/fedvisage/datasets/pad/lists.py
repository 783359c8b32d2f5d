"""Files that come with a dataset: label lists, which are compared with the names, and lists of face boxes.

Lists of one dataset may use 1, 0 or -1 for bona fide, so a number alone is ambiguous. The name decides; a contradicting
list is an error. If every label contradicts the names, the error names the option that inverts the labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import UserError
from fedvisage.base.progress import format_count
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.tree import Tree

# Face boxes that come with a dataset.

Box = npt.NDArray[np.float64]
"""Left, top, width and height in pixels."""

Form = Literal["sides", "corners", "scaled"]
SCALED_SIDE = 224
"""Side in pixels of the square image that scaled boxes refer to."""

_SEPARATOR = re.compile(r"[\s,]+")
_BYTES_LIMIT = 16 << 20


@dataclass(frozen=True)
class BoxFiles:
    """The form and paths of a video's boxes; ``{name}`` is the video's name without ending, ``{file}`` with it.

    A row of a box file is a frame's number, counted from 0, and four numbers, separated by blanks or commas. Two forms
    exist and look alike: left, top, width, height (``sides``), and two corners (``corners``). A row of zeros, or no
    row, means that the frame has no box.

    The third form (``scaled``) is for images and has no frame number: left, top, width, height and a score, in pixels
    of the image scaled to 224 × 224 pixels.
    """

    places: tuple[str, ...]
    form: Form

    def candidates(self, file: str) -> Iterator[str]:
        """Yield the possible paths of a file's boxes, relative to the start of the file's own name."""
        name = str(PurePosixPath(file).with_suffix(""))
        return (place.format(name=name, file=file) for place in self.places)


def read_boxes(path: Path, form: Form) -> dict[int, Box]:
    """Read the boxes of a video by frame; skip rows that are not boxes."""
    if path.stat().st_size > _BYTES_LIMIT:
        return {}
    boxes = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        values = _SEPARATOR.split(line.strip())
        try:
            frame, *corners = (float(value) for value in (["0", *values[:4]] if form == "scaled" else values[:5]))
        except ValueError:
            continue
        if len(corners) != 4:
            continue
        x, y, third, fourth = corners
        box = np.array([x, y, third - x, fourth - y] if form == "corners" else corners)
        if np.isfinite([frame, *box]).all() and (box[2:] > 1).all():
            boxes[int(frame)] = box
    return boxes


def in_pixels(box: Box, form: Form, width: int, height: int) -> Box | None:
    """Return the part of a box inside an image, in its pixels; None if a side is shorter than two pixels."""
    across, down = (width / SCALED_SIDE, height / SCALED_SIDE) if form == "scaled" else (1.0, 1.0)
    left, right = np.clip(np.array([box[0], box[0] + box[2]]) * across, 0, width)
    top, bottom = np.clip(np.array([box[1], box[1] + box[3]]) * down, 0, height)
    return np.array([left, top, right - left, bottom - top]) if min(right - left, bottom - top) >= 2 else None


def write_row(frame: int, box: Box, form: Form) -> str:
    """Return a box as a row of such a file."""
    x, y, w, h = (round(float(value)) for value in box)
    if form == "scaled":
        return f"{x} {y} {w} {h} 0.99"
    return f"{frame},{x},{y},{x + w},{y + h}" if form == "corners" else f"{frame} {x} {y} {w} {h}"


WORDS = ("an attack", "bona fide")


def label_and_name(line: str) -> tuple[str, str] | None:
    """Return the name and the label of a line ``label,name``."""
    label, comma, name = line.partition(",")
    return (name.strip(), label.strip()) if comma else None


def stem_of(item: Item) -> str:
    """Return the usual name of an item in lists: its file's name without folders and ending."""
    return PurePosixPath(item.video).name


@dataclass(frozen=True)
class LabelLists:
    """The paths of label lists, the format of their lines, and the usual meaning of their labels."""

    files: str
    """A regular expression for the end of a list's path."""
    read: Callable[[str], tuple[str, str] | None]
    """Returns the name of an item and its label from a line, or None for a line of another form.

    The header of a table has an empty name.
    """
    live: Callable[[str], bool]
    """Returns whether a label is bona fide, by the distributor's convention."""
    key: Callable[[Item], str] = stem_of
    """Returns the name of an item in the lists."""

    def of(self, tree: Tree) -> list[str]:
        """Return the lists of a dataset."""
        expression = re.compile(rf"(?:.*/)?(?:{self.files})", re.ASCII | re.IGNORECASE)
        return [name for name in tree.files if expression.fullmatch(name)]


def check_lists(lists: LabelLists, tree: Tree, items: Iterable[Item], live: str | None) -> tuple[str, ...]:
    """Compare all lists with the names; return notes for the report, such as listed items without a file."""
    classes = {lists.key(item): item.label for item in items}
    absent: set[str] = set()
    names = lists.of(tree)
    for name in names:
        place, wrong, right = str(tree.path(name)), list[tuple[int, str, str]](), 0
        live_labels: Counter[str] = Counter()  # the labels of items that are bona fide by name
        for number, line in tree.lines(name):
            entry = lists.read(line)
            if entry is None:
                raise UserError(place, f"line {number}: {line[:80]!r} is not a line of such a list")
            key, token = entry
            if key and key not in classes:
                absent.add(key)
            elif key:
                bona_fide = token == live if live is not None else lists.live(token)
                live_labels[token] += classes[key]
                right += bona_fide == bool(classes[key])
                if bona_fide != bool(classes[key]):
                    wrong.append((number, key, token))
        if wrong and not right and live_labels.total():
            token = live_labels.most_common(1)[0][0]
            every = f"every label contradicts the names, from line {wrong[0][0]} on: this list uses {token} = live"
            raise UserError(place, f"{every}; pass --labels live={token}")
        if wrong:
            number, key, token = wrong[0]
            more = f"; {format_count(len(wrong) - 1, 'more line', 'more lines')} wrong" if len(wrong) > 1 else ""
            fault = f"{key} is labelled {token}, but by its name it is {WORDS[classes[key]]}"
            raise UserError(place, f"line {number}: {fault}{more}")
    notes = [f"labels in lists agree with the names: {format_count(len(names), 'list')}"] if names else []
    if absent:
        notes.append(f"{format_count(len(absent), 'name')} in lists have no file here, such as {min(absent)}")
    return tuple(notes)
