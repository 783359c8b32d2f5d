"""Reads lists of verification pairs as LFW has them (``pairs.txt``; RFW's lists are alike).

A line of three fields, ``NAME 1 4``, is a pair of one person, one of four, ``NAME 1 OTHER 2``, of two; image 4 of
NAME is ``NAME/NAME_0004`` with any ending. Fields stand apart by tabs, or by spaces where no name has one. A first line
of one or two numbers says how many folds there are and how many pairs of a kind each has. Without it a fold begins
wherever pairs of one person follow pairs of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_atomically

# The lists that lie beside a prepared set: which pairs of its images, or of its templates, a benchmark asks.
#
# A list is called after the set: ``lfw-pairs.txt`` and ``cfp-pairs-fp.txt`` are lists of pairs beside ``lfw`` and
# ``cfp``. A set whose images are of templates (IJB) has ``ijbc-templates-pairs.txt``, ``ijbc-templates-
# gallery-g1.txt``
# and so on for each gallery, and ``ijbc-templates-probes.txt``.


PAIR_LISTS, OF_TEMPLATES = "-pairs", "-templates"
ENDING = ".txt"


def list_beside(directory: Path, kind: str, which: str = "") -> Path:
    """Return where a list of a set lies."""
    return directory.with_name(f"{directory.name}{kind}{f'-{which.lower()}' if which else ''}{ENDING}")


def lists_beside(directory: Path, kind: str) -> dict[str, Path]:
    """Return the lists of a kind that lie beside a set, by what stands behind the kind: nothing for the only one."""
    whole = directory.absolute()
    begin, found = f"{whole.name}{kind}", {}
    for path in sorted(whole.parent.iterdir()) if whole.parent.is_dir() else ():
        rest = path.name.removeprefix(begin).removesuffix(ENDING)
        if path.name == f"{begin}{rest}{ENDING}" and rest[:1] in ("", "-") and path.is_file():
            found[rest.removeprefix("-")] = path
    return found


# What a benchmark of templates asks: pairs of them, galleries and probes; and how its lists are written and read.
#
# A template is some images of one person, and has a number; images say theirs in the set's further columns. A line
# of
# pairs is two templates and whether they are of one person (1) or two (0); a line of a gallery or of the probes is a
# template and the number of its person.


TEMPLATE, MEDIA, CONFIDENCE = "template", "media", "confidence"
COLUMNS = (TEMPLATE, MEDIA, CONFIDENCE)
"""Further columns: the template of an image, the photograph or video that it is from, and how sure a detector was."""

PAIRS, PROBES, GALLERY = "pairs", "probes", "gallery"
LARGEST = 2 << 30
_LINES = 1 << 17

Table = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TemplateLists:
    """The lists of a benchmark; rows of pairs have three numbers, the others two."""

    pairs: Table | None = None
    galleries: Mapping[str, Table] = field(default_factory=dict)
    probes: Table | None = None

    @property
    def named(self) -> dict[str, Table]:
        """Return the lists that there are, by their names beside a set."""
        found = {PAIRS: self.pairs, **{f"{GALLERY}-{name}": one for name, one in self.galleries.items()},
                 PROBES: self.probes}  # fmt: skip
        return {name: one for name, one in found.items() if one is not None}


def write_lists(directory: Path, lists: TemplateLists) -> dict[str, int]:
    """Write lists beside a set; return the number of lines of each."""
    for name, table in lists.named.items():
        parts = []
        for start in range(0, len(table), _LINES):
            rows = table[start : start + _LINES].tolist()
            parts.append("".join(f"{' '.join(map(str, row))}\n" for row in rows).encode())
        write_atomically(list_beside(directory, OF_TEMPLATES, name), b"".join(parts))
    return {name: len(table) for name, table in lists.named.items()}


def read_lists(directory: Path) -> TemplateLists:
    """Read the lists that lie beside a set; there may be none."""
    found = lists_beside(directory, OF_TEMPLATES)
    tables = {name: read_table(path, 3 if name == PAIRS else 2) for name, path in found.items()}
    galleries = {name.removeprefix(f"{GALLERY}-"): one for name, one in tables.items() if name.startswith(GALLERY)}
    return TemplateLists(tables.get(PAIRS), galleries, tables.get(PROBES))


def read_table(path: Path, columns: int) -> Table:
    """Read a list of whole numbers, so many a line; pairs end in 0 or 1."""
    if path.stat().st_size > LARGEST:
        raise UserError(str(path), f"is larger than {LARGEST >> 30} GiB: not a list")
    try:
        with path.open(encoding="utf-8-sig") as file:
            if not file.read(_LINES).strip():
                raise UserError(str(path), "is empty")
            file.seek(0)
            table: Table = np.loadtxt(file, np.int32, comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        wanted = "two templates and 0 or 1" if columns == 3 else "a template and a person"
        raise UserError(str(path), f"is no list of whole numbers, {wanted} a line: {error}") from None
    if table.shape[1] != columns or (table < 0).any() or (columns == 3 and (table[:, 2] > 1).any()):
        wanted = "two templates, and 1 for one person or 0 for two" if columns == 3 else "a template and a person"
        raise UserError(str(path), f"must have {wanted} in each line, as whole numbers")
    return table


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
