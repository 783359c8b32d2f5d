"""The pictures that a person asks about: files, folders, lists of paths, one through a pipe; what came of them all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedvisage.datasets.importers.pictures import ENDINGS, open_picture, read_picture
from fedvisage.datasets.importers.report import BadFile, printable
from fedvisage.errors import UserError
from fedvisage.faces.upright import Found, Image
from fedvisage.progress import Steps, counted

Look = TypeVar("Look")

AT_ONCE = 256
"""Crops that are kept in memory before they are scored."""

PIPE = Path("-")
"""What is named where the picture comes through standard input."""

UPSIDE_DOWN, GREY, SEVERAL = "upside down", "grey", "several faces"
"""What is remarkable of a picture, as programs read it."""


@dataclass(frozen=True)
class Picture:
    """A picture by its name, to be read when its turn comes."""

    name: str
    read: Callable[[], Image]
    """Returns H×W×3 in RGB, or raises BadFile."""


@dataclass(frozen=True)
class Asked:
    """The pictures that are asked about, and how many files of folders are none, by the endings of their names."""

    pictures: list[Picture]
    passed_over: Counter[str] = field(default_factory=Counter)

    @property
    def notices(self) -> list[str]:
        """What to know of folders, a line each; nothing if all in them are pictures."""
        if not self.passed_over:
            return []
        endings = sorted(self.passed_over.items())
        kinds = ", ".join(f"{printable(ending) or 'no ending'} {count}" for ending, count in endings)
        return [f"{counted(self.passed_over.total(), 'file')} passed over, by the ending: {kinds}"]


def asked_for(paths: Sequence[Path], listed: bytes | None = None, piped: Callable[[], bytes] | None = None) -> Asked:
    """Return the pictures of files and folders, and of the paths in a list; ``-`` is the picture that is piped in.

    A path that is named and not there is a mistake; one in a list becomes a picture that cannot be read.
    """
    asked = Asked([])
    if list(paths).count(PIPE) > 1:
        raise UserError("PATH", "standard input holds one picture; name - once")
    for path in paths:
        if path == PIPE and piped is not None:
            asked.pictures.append(Picture("-", partial(_decoded, piped)))
        elif path.is_file():
            asked.pictures.append(picture_at(path))
        elif path.is_dir():
            _look_into(path, asked)
        else:
            raise UserError(_printed(path), "is neither an image nor a folder")
    for path in _paths_in(listed or b""):
        if path.is_dir():
            _look_into(path, asked)
        else:
            asked.pictures.append(picture_at(path))
    if not asked.pictures:
        raise UserError("PATH", "no image is named; give files, folders, - or --paths-from")
    return asked


def picture_at(path: Path) -> Picture:
    """Return the picture of a file; bytes of its name that are no text are shown by a sign in their place."""
    name = os.fsencode(path).decode("utf-8", errors="replace")
    return Picture(name, partial(open_picture, path))


def looked_at(
    pictures: Sequence[Picture], look: Callable[[Image], Look], steps: Steps
) -> Iterator[list[tuple[str, Look | BadFile]]]:
    """Read pictures and look at each; yield portions of names with what was seen, or why nothing was."""
    portion: list[tuple[str, Look | BadFile]] = []
    for done, picture in enumerate(pictures, 1):
        try:
            portion.append((picture.name, look(picture.read())))
        except BadFile as bad:
            portion.append((picture.name, bad))
        steps(done, len(pictures))
        if len(portion) == AT_ONCE or done == len(pictures):
            yield portion
            portion = []


def notes_of(found: Found | None, *, grey: bool = False) -> tuple[str, ...]:
    """Return what is remarkable of a picture and of the faces that were found on it, if any were sought."""
    several, turned = found is not None and len(found.faces) > 1, found is not None and found.turned
    return tuple(note for note, true in ((SEVERAL, several), (UPSIDE_DOWN, turned), (GREY, grey)) if true)


def in_words(notes: Sequence[str], faces: int | None) -> str:
    """Return notes as people read them behind a picture's name; nothing where there are none."""
    sentences = {
        SEVERAL: f"{faces} faces: the largest",
        UPSIDE_DOWN: "upside down: turned first",
        GREY: "grey, as infrared is: the model knows colours",
    }
    return f"  ({'; '.join(sentences[note] for note in notes)})" if notes else ""


def exit_code(decisions: Iterable[str], *, good: str, bad: str) -> int:
    """Return 0 if every decision is good, 1 if one is bad, and 3 if none is bad but something was not decided."""
    found = set(decisions)
    if bad in found:
        return 1
    return 0 if found == {good} else 3


def _decoded(piped: Callable[[], bytes]) -> Image:
    return read_picture(piped())


def _paths_in(listed: bytes) -> list[Path]:
    """Return the paths of a list, one a line; with NUL bytes, as ``find -print0`` writes them, between these."""
    parts = listed.split(b"\0") if b"\0" in listed else listed.splitlines()
    return [Path(os.fsdecode(part)) for part in parts if part]


def _look_into(folder: Path, asked: Asked) -> None:
    """Add the pictures in a folder, in order of their names, and count what is none."""
    before = len(asked.pictures)
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        if path.suffix.lower() in ENDINGS:
            asked.pictures.append(picture_at(path))
        else:
            asked.passed_over[path.suffix.lower()] += 1
    if len(asked.pictures) == before:
        raise UserError(_printed(folder), f"has no images ({', '.join(ENDINGS)})")


def _printed(path: Path) -> str:
    return printable(str(path))
