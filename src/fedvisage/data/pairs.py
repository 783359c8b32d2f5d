"""Reads lists of verification pairs as LFW has them (``pairs.txt``; RFW's lists are alike).

A line of three fields, ``NAME 1 4``, is a pair of one person, one of four, ``NAME 1 OTHER 2``, of two; image 4 of
NAME is ``NAME/NAME_0004`` with any ending. Fields stand apart by tabs, or by spaces where no name has one. A first line
of one or two numbers says how many folds there are and how many pairs of a kind each has. Without it a fold begins
wherever pairs of one person follow pairs of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError

Numbered = tuple[str, int]
"""A name and the number of one of its images."""

Pair = tuple[Numbered, Numbered]
"""Two images; they are of one person if the names are equal."""

PairList = Sequence[Sequence[Pair]]
"""The pairs of a list, fold by fold."""


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
    pairs, same, fold = read_numbered(path)
    return ListedPairs([image_of(*one) for one, _ in pairs], [image_of(*other) for _, other in pairs], same, fold)


def read_numbered(path: Path) -> tuple[list[Pair], NDArray[np.bool_], NDArray[np.int64]]:
    """Read a list: its pairs by names and numbers, whether each is of one person, and its fold, from 0."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise UserError(str(path), "is not text; give a list of pairs such as LFW's pairs.txt") from None
    rows = [(number, _fields(line)) for number, line in enumerate(lines, 1) if line.strip()]
    header = rows.pop(0)[1] if rows and len(rows[0][1]) < 3 else []
    pairs = [_pair(fields, f"{path}, line {number}") for number, fields in rows]
    if not pairs:
        raise UserError(str(path), "holds no pair")
    flags = np.array([len(fields) == 3 for _, fields in rows], dtype=bool)
    return pairs, flags, _folds(header, flags, path)


def text_of_pairs(folds: PairList) -> str:
    """Return a list as :func:`read_pairs` reads it, with the same folds.

    Folds of one even size have a first line that says so. Others show where they begin: in each the pairs of one person
    come first. A list whose folds cannot be shown is one fold.
    """
    sizes = {len(fold) for fold in folds}
    if len(sizes) == 1 and (size := sizes.pop()) % 2 == 0:
        return f"{len(folds)}\t{size // 2}\n" + "".join(_written(pair) for fold in folds for pair in fold)
    if not all(len({_same(pair) for pair in fold}) == 2 for fold in folds):
        folds = [[pair for fold in folds for pair in fold]]
    return "".join(_written(pair) for fold in folds for pair in sorted(fold, key=lambda pair: not _same(pair)))


def image_of(name: str, number: int) -> str:
    """Return the name of an image of somebody."""
    return f"{name}/{name}_{number:04d}"


def _same(pair: Pair) -> bool:
    return pair[0][0] == pair[1][0]


def _written(pair: Pair) -> str:
    (one, first), (other, second) = pair
    return f"{one}\t{first}\t{second}\n" if _same(pair) else f"{one}\t{first}\t{other}\t{second}\n"


def image_named(item: str) -> str:
    """Return the name by which lists call an image: its folder and file, without the ending."""
    return "/".join(PurePosixPath(item.rpartition(".")[0] or item).parts[-2:])


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.split("\t")] if "\t" in line else line.split()


def _pair(fields: list[str], place: str) -> Pair:
    if len(fields) == 3:
        fields = [fields[0], fields[1], fields[0], fields[2]]
    elif len(fields) != 4:
        raise UserError(place, f"has {len(fields)} fields; a pair has three (one person) or four (two)")
    if not (fields[1].isdecimal() and fields[3].isdecimal()):
        raise UserError(place, "has no numbers of images; write NAME 1 4, or NAME 1 OTHER 2")
    return (fields[0], int(fields[1])), (fields[2], int(fields[3]))


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
