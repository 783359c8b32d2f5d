"""Face boxes that come with a dataset: where they lie, and how their rows are written.

A row is a frame's number, counted from 0, and four numbers, apart by blanks or commas. Two forms exist and look alike:
left, top, width, height, and two corners. A row of zeros, or none, means that the frame has no box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import numpy.typing as npt

Box = npt.NDArray[np.float64]
"""Left, top, width and height in pixels."""

Form = Literal["sides", "corners"]
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
        try:
            frame, *corners = (float(value) for value in _SEPARATOR.split(line.strip())[:5])
        except ValueError:
            continue
        box = _box(corners, form) if len(corners) == 4 else None
        if box is not None and np.isfinite(frame):
            boxes[int(frame)] = box
    return boxes


def write_row(frame: int, box: Box, form: Form) -> str:
    """Write a box as such a file has it."""
    x, y, w, h = (round(float(value)) for value in box)
    return f"{frame},{x},{y},{x + w},{y + h}" if form == "corners" else f"{frame} {x} {y} {w} {h}"


def _box(values: list[float], form: Form) -> Box | None:
    x, y, third, fourth = values
    box = np.array([x, y, third - x, fourth - y] if form == "corners" else values)
    return box if np.isfinite(box).all() and (box[2:] > 1).all() else None
