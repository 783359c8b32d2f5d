"""Reads lists of verification pairs as LFW has them (``pairs.txt``; RFW's lists are alike).

A line of three fields, ``NAME 1 4``, is a pair of one person, one of four, ``NAME 1 OTHER 2``, of two; image 4 of
NAME is ``NAME/NAME_0004`` with any ending. Fields stand apart by tabs, or by spaces where no name has one. A first line
of one or two numbers says how many folds there are and how many pairs of a kind each has. Without it a fold begins
wherever pairs of one person follow pairs of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError


@dataclass(frozen=True, eq=False)
class ListedPairs:
    """The pairs of a list in its order: the two images, whether they are of one person, and the fold, from 0."""

    first: list[str]
    second: list[str]
    same: NDArray[np.bool_]
    fold: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.same)


def read_pairs(path: Path) -> ListedPairs:
    """Read a list of pairs."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UserError(str(path), "is not text; give a list of pairs such as LFW's pairs.txt") from None
    rows = [(number, _fields(line)) for number, line in enumerate(lines, 1) if line.strip()]
    header = rows.pop(0)[1] if rows and len(rows[0][1]) < 3 else []
    first, second, same = [], [], []
    for number, fields in rows:
        one, other, alike = _pair(fields, f"{path}, line {number}")
        first.append(one)
        second.append(other)
        same.append(alike)
    if not same:
        raise UserError(str(path), "holds no pair")
    flags = np.array(same, dtype=bool)
    return ListedPairs(first, second, flags, _folds(header, flags, path))


def image_named(item: str) -> str:
    """Return the name by which lists call an image: its folder and file, without the ending."""
    return "/".join(PurePosixPath(item.rpartition(".")[0] or item).parts[-2:])


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.split("\t")] if "\t" in line else line.split()


def _pair(fields: list[str], place: str) -> tuple[str, str, bool]:
    if len(fields) == 3:
        fields = [fields[0], fields[1], fields[0], fields[2]]
        same = True
    elif len(fields) == 4:
        same = False
    else:
        raise UserError(place, f"has {len(fields)} fields; a pair has three (one person) or four (two)")
    if not (fields[1].isdecimal() and fields[3].isdecimal()):
        raise UserError(place, "has no numbers of images; write NAME 1 4, or NAME 1 OTHER 2")
    return _image(fields[0], fields[1]), _image(fields[2], fields[3]), same


def _image(name: str, number: str) -> str:
    return f"{name}/{name}_{int(number):04d}"


def _folds(header: list[str], same: NDArray[np.bool_], path: Path) -> NDArray[np.int64]:
    if not header:
        begins = np.concatenate([[False], same[1:] & ~same[:-1]])
        return np.cumsum(begins).astype(np.int64)
    if not all(field.isdecimal() and int(field) for field in header):
        raise UserError(f"{path}, line 1", "is neither a pair nor the numbers of folds and of pairs of a kind in each")
    folds, of_a_kind = (1, int(header[0])) if len(header) == 1 else (int(header[0]), int(header[1]))
    if len(same) != 2 * folds * of_a_kind:
        raise UserError(
            str(path), f"has {len(same)} pairs, but its first line speaks of {folds} × 2 × {of_a_kind}; is it cut off?"
        )
    return np.repeat(np.arange(folds), 2 * of_a_kind)
