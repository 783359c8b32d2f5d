"""Copying a shipped recipe or study to a file of one's own.

A study names other files relative to itself. In the copy they get their shipped names, so it works in any directory.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from fedvisage.errors import UserError
from fedvisage.shipped.names import ENDING, file_of, find, names

_FILE = re.compile(r"[\w./-]+\.yaml\b")


def copy_out(given: str, destination: Path | None) -> Path:
    """Write a copy of what has this name to a file, or into a directory, and return where it is."""
    name = find(given)
    own = Path(f"{posixpath.basename(name)}{ENDING}")
    path = own if destination is None else destination / own if destination.is_dir() else destination
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(with_shipped_names(file_of(name).read_text(encoding="utf-8"), posixpath.dirname(name)))
    except FileExistsError as error:
        raise UserError(str(path), "exists already; give another place, or remove it first") from error
    return path


def with_shipped_names(text: str, folder: str) -> str:
    """Return the text of a file of this folder with the shipped names of the files that it names."""

    def renamed(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, match[0])).removesuffix(ENDING)
        return name if name in names() else match[0]

    return _FILE.sub(renamed, text)
