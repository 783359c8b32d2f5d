"""What a benchmark of templates asks: pairs of them, galleries and probes; and how its lists are written and read.

A template is some images of one person, and has a number; images say theirs in the set's further columns. A line of
pairs is two templates and whether they are of one person (1) or two (0); a line of a gallery or of the probes is a
template and the number of its person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.beside import OF_TEMPLATES, list_beside, lists_beside
from fedvisage.errors import UserError
from fedvisage.files import write_atomically

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
