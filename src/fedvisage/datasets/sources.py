"""Resolve a data entry of a recipe to the directory of a prepared set.

An entry is such a directory, or a line ``synth: O subjects=20`` that specifies a rendered set. Rendered sets are cached
under the digest of everything that decides their pixels, so a changed renderer never reuses old images. ``synth: people
identities=40`` makes an identity set. An entry may end in ``part=3/40``, the third of forty shares of a set's
identities, or in ``part=1-6/40``, the first six together, so that one set serves many sites.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedvisage.base.errors import UserError
from fedvisage.base.parallel import Progress
from fedvisage.base.progress import Say, discard, in_steps
from fedvisage.data.prepared import SET, read_manifest

if TYPE_CHECKING:
    from fedvisage.render.identities import Identities
    from fedvisage.render.sets import Synthesis

SYNTHETIC = "synth:"
_PART = re.compile(r"\s+part=(\d{1,6})(?:-(\d{1,6}))?/(\d{1,6})$")


@dataclass(frozen=True)
class Part:
    """Consecutive shares of a set's identities; each share has every ``of``-th identity in sorted order."""

    number: int
    of: int
    last: int
    """The last share of the range from ``number`` on."""

    def __str__(self) -> str:
        """Return the share as written in an entry."""
        return f"{self.number}/{self.of}" if self.last == self.number else f"{self.number}-{self.last}/{self.of}"


def without_part(entry: str) -> tuple[str, Part | None]:
    """Split a data entry into its set and its share."""
    match = _PART.search(entry)
    if match is None:
        return entry, None
    part = Part(int(match[1]), int(match[3]), int(match[2] or match[1]))
    if not 1 <= part.number <= part.last <= part.of:
        raise UserError(
            entry, f"part={part} is not a valid share; the first of three is part=1/3, the others part=2-3/3"
        )
    return entry[: match.start()], part


def check_source(entry: str, size: int | None = None) -> None:
    """Check a set before any rendering: read its line or its manifest, and compare its size."""
    entry = entry.strip()
    _, spec = _parse_rendered(entry)
    set_size = read_manifest(Path(entry).expanduser()).size if spec is None else spec.size
    if size not in (None, set_size):
        raise UserError(
            entry, f"has {set_size}×{set_size} images, but input.size is {size}; create it again at that size"
        )


def resolve(entry: str, cache: Path, *, workers: int = 1, say: Say = discard) -> Path:
    """Return the directory of an entry's prepared set, rendering it into the cache if necessary."""
    path, name, make = _plan_set(entry.strip(), cache)
    if make is None or _is_complete(path):
        return path
    try:
        with in_steps(f"rendering {name}", say) as progress:
            make(path, workers=workers, progress=progress)
    except UserError:
        # Another process may have finished the same set meanwhile; its pixels are the same.
        if not _is_complete(path):
            raise
    return path


def render_set(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render the set of a specification, of either generation."""
    # Imported here because rendering needs libraries that reading a directory does not.
    from fedvisage.render.second_generation import recapture_portraits
    from fedvisage.render.sets import SECOND_GENERATION, synthesise

    render = recapture_portraits if spec.generation == SECOND_GENERATION else synthesise
    render(spec, destination, workers=workers, progress=progress)


def existing_set(entry: str, cache: Path) -> Path | None:
    """Return the directory of an entry's prepared set, or None if it does not exist; render nothing."""
    path, _, _ = _plan_set(entry.strip(), cache)
    return path if _is_complete(path) else None


def _parse_rendered(entry: str) -> tuple[str, Synthesis | Identities | None]:
    """Return the name and the specification of an entry's rendered set; a directory has neither."""
    if not entry.startswith(SYNTHETIC):
        return "", None
    # Imported here because rendering needs libraries that reading a directory does not.
    from fedvisage.render.identities import NAME, parse_identities
    from fedvisage.render.sets import parse_synthesis

    line = entry.removeprefix(SYNTHETIC).strip()
    name, *settings = line.split() or [""]
    return name, parse_identities(settings) if name == NAME else parse_synthesis(line)


def _plan_set(entry: str, cache: Path) -> tuple[Path, str, Callable[..., None] | None]:
    """Return the directory of an entry's set, its name if it is rendered, and the function that renders it."""
    name, spec = _parse_rendered(entry)
    if spec is None:
        return Path(entry).expanduser(), "", None
    from fedvisage.render.identities import Identities, render_identities

    render: Callable[..., None] = render_identities if isinstance(spec, Identities) else render_set
    digest = hashlib.sha256(spec.digest_text.encode()).hexdigest()[:12]
    return cache / f"synth-{name}-{digest}", name, partial(render, spec)


def _is_complete(path: Path) -> bool:
    """Return whether a set exists: sets appear under their name only when complete."""
    return (path / SET).is_file()
