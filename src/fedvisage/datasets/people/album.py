"""What a layout says of a dataset of people: whose photographs there are, where they lie, and which pairs are asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.pairs import PairList
from fedvisage.data.templates import TemplateLists
from fedvisage.datasets.importers.pictures import BYTES_LIMIT
from fedvisage.datasets.importers.report import BadFile, Skipped

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
