"""Lists of benchmarks beside a prepared set: verification pairs (LFW, RFW) and template lists (IJB).

A list is named after its set: ``lfw-pairs.txt`` and ``cfp-pairs-fp.txt`` are pair lists of ``lfw`` and ``cfp``. A set
whose images belong to templates (IJB) has ``ijbc-templates-pairs.txt``, one ``ijbc-templates-gallery-g1.txt`` per
gallery, and ``ijbc-templates-probes.txt``.

Pair lists use the format of LFW's ``pairs.txt``; RFW's lists are similar. A line with three fields, ``NAME 1 4``, is a
pair of one person; a line with four fields, ``NAME 1 OTHER 2``, is a pair of two people. Image 4 of NAME is
``NAME/NAME_0004`` with any extension. Fields are separated by tabs, or by spaces if no name contains one. A first line
with one or two numbers gives the number of folds and the number of pairs of each kind per fold. Without it, a new fold
starts wherever a pair of one person follows a pair of two people.

A template is a group of images of one person and has a number, which the images store in further columns of the set.
Each line of a template pair list holds two templates, and 1 if they show one person or 0 if they show two. Each line of
a gallery or probe list holds a template and the number of its person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import open_regular, read_plain, write_atomically

PAIR_LISTS, OF_TEMPLATES = "-pairs", "-templates"
ENDING = ".txt"


def list_beside(directory: Path, kind: str, which: str = "") -> Path:
    """Return the path of a list of a set."""
    return directory.with_name(f"{directory.name}{kind}{f'-{which.lower()}' if which else ''}{ENDING}")


def lists_beside(directory: Path, kind: str) -> dict[str, Path]:
    """Return the lists of one kind beside a set, keyed by the suffix after the kind (empty for a single list)."""
    absolute = directory.absolute()
    begin, paths = f"{absolute.name}{kind}", {}
    for path in sorted(absolute.parent.iterdir()) if absolute.parent.is_dir() else ():
        rest = path.name.removeprefix(begin).removesuffix(ENDING)
        if path.name == f"{begin}{rest}{ENDING}" and rest[:1] in ("", "-") and path.is_file():
            paths[rest.removeprefix("-")] = path
    return paths


TEMPLATE, MEDIA, CONFIDENCE = "template", "media", "confidence"
COLUMNS = (TEMPLATE, MEDIA, CONFIDENCE)
"""Further columns: the template of an image, its source photograph or video, and the confidence of a detector."""

PAIRS, PROBES, GALLERY = "pairs", "probes", "gallery"
LARGEST = 2 << 30
_LINES = 1 << 17

Table = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TemplateLists:
    """The lists of a benchmark. Rows of pairs have three numbers, other rows two."""

    pairs: Table | None = None
    galleries: Mapping[str, Table] = field(default_factory=dict)
    probes: Table | None = None

    @property
    def tables(self) -> dict[str, Table]:
        """Return the lists that exist, keyed by their names beside a set."""
        tables = {
            PAIRS: self.pairs,
            **{f"{GALLERY}-{name}": gallery for name, gallery in self.galleries.items()},
            PROBES: self.probes,
        }
        return {name: table for name, table in tables.items() if table is not None}


def write_lists(directory: Path, lists: TemplateLists) -> dict[str, int]:
    """Write lists beside a set and return the number of lines of each."""
    for name, table in lists.tables.items():
        parts = []
        for start in range(0, len(table), _LINES):
            rows = table[start : start + _LINES].tolist()
            parts.append("".join(f"{' '.join(map(str, row))}\n" for row in rows).encode())
        write_atomically(list_beside(directory, OF_TEMPLATES, name), b"".join(parts))
    return {name: len(table) for name, table in lists.tables.items()}


def read_lists(directory: Path) -> TemplateLists:
    """Read the lists beside a set, if there are any."""
    paths = lists_beside(directory, OF_TEMPLATES)
    tables = {name: read_table(path, 3 if name == PAIRS else 2) for name, path in paths.items()}
    galleries = {name.removeprefix(f"{GALLERY}-"): table for name, table in tables.items() if name.startswith(GALLERY)}
    return TemplateLists(tables.get(PAIRS), galleries, tables.get(PROBES))


def read_table(path: Path, columns: int) -> Table:
    """Read a list of integers with this number of columns; lines of pairs end in 0 or 1."""
    if path.stat().st_size > LARGEST:
        raise UserError(str(path), f"is larger than {LARGEST >> 30} GiB: not a list")
    try:
        with open(path, encoding="utf-8-sig", opener=open_regular) as file:
            if not file.read(_LINES).strip():
                raise UserError(str(path), "is empty")
            file.seek(0)
            table: Table = np.loadtxt(file, np.int32, comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        expected = "two templates and 0 or 1" if columns == 3 else "a template and a person"
        raise UserError(str(path), f"is not a list of whole numbers, with {expected} per line: {error}") from None
    if table.shape[1] != columns or (table < 0).any() or (columns == 3 and (table[:, 2] > 1).any()):
        expected = "two templates, and 1 for one person or 0 for two" if columns == 3 else "a template and a person"
        raise UserError(str(path), f"must have {expected} per line, as whole numbers")
    return table


PersonImage = tuple[str, int]
"""A person's name and an image number."""

Pair = tuple[PersonImage, PersonImage]
"""Two images. They show one person if the names are equal."""

PairList = Sequence[Sequence[Pair]]
"""The pairs of a list, grouped by fold."""


@dataclass(frozen=True, eq=False)
class ListedPairs:
    """The pairs of a list in order: both images, a same-person flag, and the fold (from 0)."""

    first: list[str]
    second: list[str]
    same: NDArray[np.bool_]
    fold: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.same)


def read_pairs(path: Path) -> ListedPairs:
    """Read a list of pairs."""
    pairs, same, fold = read_numbered_pairs(path)
    return ListedPairs(
        [image_name(*first) for first, _ in pairs], [image_name(*second) for _, second in pairs], same, fold
    )


def read_numbered_pairs(path: Path) -> tuple[list[Pair], NDArray[np.bool_], NDArray[np.int64]]:
    """Read a list: pairs of names and numbers, a same-person flag for each, and the fold of each (from 0)."""
    try:
        lines = read_plain(path).decode().splitlines()
    except UnicodeDecodeError:
        raise UserError(str(path), "is not text; give a list of pairs such as LFW's pairs.txt") from None
    rows = [
        (number, [field.strip() for field in line.split("\t")] if "\t" in line else line.split())
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    header = rows.pop(0)[1] if rows and len(rows[0][1]) < 3 else []
    pairs: list[Pair] = []
    for number, fields in rows:
        if len(fields) not in (3, 4):
            fault = f"has {len(fields)} fields; a pair has three (one person) or four (two)"
            raise UserError(f"{path}, line {number}", fault)
        name, first, other, second = fields if len(fields) == 4 else (*fields[:2], fields[0], fields[2])
        if not (first.isdecimal() and second.isdecimal()):
            fault = "has no numbers of images; write NAME 1 4, or NAME 1 OTHER 2"
            raise UserError(f"{path}, line {number}", fault)
        pairs.append(((name, int(first)), (other, int(second))))
    if not pairs:
        raise UserError(str(path), "contains no pairs")
    flags = np.array([len(fields) == 3 for _, fields in rows], dtype=bool)
    return pairs, flags, _folds(header, flags, path)


def text_of_pairs(folds: PairList) -> str:
    """Return the text of a list that :func:`read_pairs` reads back with the same folds.

    If all folds have one even size, the first line states it. Otherwise the order shows where folds begin: in each
    fold, pairs of one person come first. Folds that cannot be expressed this way are merged into one.
    """
    sizes = {len(fold) for fold in folds}
    if len(sizes) == 1 and (size := sizes.pop()) % 2 == 0:
        return f"{len(folds)}\t{size // 2}\n" + "".join(_format_pair(pair) for fold in folds for pair in fold)
    if not all(len({_is_same_person(pair) for pair in fold}) == 2 for fold in folds):
        folds = [[pair for fold in folds for pair in fold]]
    return "".join(
        _format_pair(pair) for fold in folds for pair in sorted(fold, key=lambda pair: not _is_same_person(pair))
    )


def image_name(name: str, number: int) -> str:
    """Return the name of a person's image."""
    return f"{name}/{name}_{number:04d}"


def _is_same_person(pair: Pair) -> bool:
    return pair[0][0] == pair[1][0]


def _format_pair(pair: Pair) -> str:
    (first_name, first_number), (second_name, second_number) = pair
    return (
        f"{first_name}\t{first_number}\t{second_number}\n"
        if _is_same_person(pair)
        else f"{first_name}\t{first_number}\t{second_name}\t{second_number}\n"
    )


def listed_name(item: str) -> str:
    """Return the name of an image in lists: its folder and file without the extension."""
    return "/".join(PurePosixPath(item.rpartition(".")[0] or item).parts[-2:])


def _folds(header: list[str], same: NDArray[np.bool_], path: Path) -> NDArray[np.int64]:
    if not header:
        begins = np.concatenate([[False], same[1:] & ~same[:-1]])
        return np.cumsum(begins).astype(np.int64)
    if not all(field.isdecimal() and int(field) for field in header):
        raise UserError(
            f"{path}, line 1", "is neither a pair nor a header with the number of folds and of pairs per kind"
        )
    folds, of_a_kind = (1, int(header[0])) if len(header) == 1 else (int(header[0]), int(header[1]))
    if len(same) != 2 * folds * of_a_kind:
        raise UserError(
            str(path), f"has {len(same)} pairs, but its first line announces {folds} × 2 × {of_a_kind}; is it cut off?"
        )
    return np.repeat(np.arange(folds), 2 * of_a_kind)
