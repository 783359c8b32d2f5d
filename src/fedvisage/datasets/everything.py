"""Imports each known dataset below a folder into a set of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedvisage.data.manifest import SET
from fedvisage.datasets.finding import Found, find_datasets
from fedvisage.errors import UserError
from fedvisage.progress import Say

ImportOne = Callable[[Found, Path], list[str]]
"""Imports a dataset that was found into a directory, and returns what there is to say."""


def import_all(root: Path, destination: Path, say: Say, import_one: ImportOne) -> list[str]:
    """Import each known dataset below a folder into a set named for it; one that fails keeps no other back."""
    below = find_datasets(root)
    lines, failed = [f"not known, and left alone: {name}" for name in below.unknown], []
    for one in below.datasets:
        target = destination / one.name
        if (target / SET).is_file():
            lines.append(f"{one.name}: is there already")
            continue
        try:
            done = import_one(one, target)
        except UserError as error:
            failed.append(f"{one.name}: {error}")
            continue
        lines += [f"{one.name}: {done[0]}", *(f"  {line}" for line in done[1:])]
    if failed:
        for line in lines:
            say(line)
        message = f"{len(failed)} of {len(below.datasets)} datasets were not imported: {'; '.join(failed)}"
        raise UserError(str(root), message)
    return lines
