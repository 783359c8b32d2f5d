"""From a data entry of a recipe to the directory of a prepared set.

An entry is such a directory, or a line ``synth: O subjects=20`` that says what to render. Rendered sets are kept in
a cache under the digest of everything that decides their pixels, so a changed renderer never finds old images.
``synth: people identities=40`` makes an identity set. An entry may end in ``part=3/40``, the third of forty shares of a
set's identities, or in ``part=1-6/40``, the first six together, so that one set serves many places.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say, in_steps, unheard
from fedvisage.data.prepared import SET, read_manifest

SYNTHETIC = "synth:"
_PART = re.compile(r"\s+part=(\d{1,6})(?:-(\d{1,6}))?/(\d{1,6})$")


@dataclass(frozen=True)
class Part:
    """Some of several equal shares of a set's identities; a share is, in their sorted order, every ``of``-th."""

    number: int
    of: int
    last: int
    """The share up to which all from ``number`` on are meant."""

    def __str__(self) -> str:
        """Write it as an entry does."""
        return f"{self.number}/{self.of}" if self.last == self.number else f"{self.number}-{self.last}/{self.of}"


def without_part(entry: str) -> tuple[str, Part | None]:
    """Split a data entry into the set that it names and the share of it."""
    found = _PART.search(entry)
    if found is None:
        return entry, None
    part = Part(int(found[1]), int(found[3]), int(found[2] or found[1]))
    if not 1 <= part.number <= part.last <= part.of:
        raise UserError(entry, f"part={part} is no share; the first of three is part=1/3, the others part=2-3/3")
    return entry[: found.start()], part


def check_source(entry: str, size: int | None = None) -> None:
    """Refuse a set that cannot be made or is not there, before anything is made: its line is read, or its manifest."""
    entry = entry.strip()
    if not entry.startswith(SYNTHETIC):
        found = read_manifest(Path(entry).expanduser()).size
    else:
        from fedvisage.render.identities import NAME, parse_identities
        from fedvisage.render.sets import parse_synthesis

        line = entry.removeprefix(SYNTHETIC).strip()
        name, *settings = line.split() or [""]
        found = (parse_identities(settings) if name == NAME else parse_synthesis(line)).size
    if size not in (None, found):
        raise UserError(entry, f"has {found}×{found} images, but input.size is {size}; prepare it at that size")


def resolve(entry: str, cache: Path, *, workers: int = 1, say: Say = unheard) -> Path:
    """Return the directory of the prepared set that an entry names, rendering it into the cache if need be."""
    path, name, make = _planned(entry.strip(), cache)
    if make is None or _complete(path):
        return path
    try:
        with in_steps(f"rendering {name}", say) as progress:
            make(path, workers=workers, progress=progress)
    except UserError:
        # Another process may have finished the same set meanwhile; its pixels are the same.
        if not _complete(path):
            raise
    return path


def place_of(entry: str, cache: Path) -> Path | None:
    """Return the directory of the prepared set that an entry names, or None where it is not there: none is made."""
    path, _, _ = _planned(entry.strip(), cache)
    return path if _complete(path) else None


def _planned(entry: str, cache: Path) -> tuple[Path, str, Callable[..., None] | None]:
    """Return where the set of an entry is or will be, what is rendered, and what renders it."""
    if not entry.startswith(SYNTHETIC):
        return Path(entry).expanduser(), "", None
    # Here, because rendering needs libraries that reading a directory does not.
    from fedvisage.datasets.on_portraits import render_set
    from fedvisage.render.identities import NAME, parse_identities, render_identities
    from fedvisage.render.sets import parse_synthesis

    line = entry.removeprefix(SYNTHETIC).strip()
    name, *settings = line.split() or [""]
    make: Callable[..., None]
    if name == NAME:
        people = parse_identities(settings)
        digest, make = people.digest_text, partial(render_identities, people)
    else:
        spec = parse_synthesis(line)
        digest, make = spec.digest_text, partial(render_set, spec)
    return cache / f"synth-{name}-{hashlib.sha256(digest.encode()).hexdigest()[:12]}", name, make


def _complete(path: Path) -> bool:
    """Tell whether a set is there: sets appear under their name only when they are whole."""
    return (path / SET).is_file()
