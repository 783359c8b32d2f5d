"""The sets of a run on the nodes of a Ray cluster: at the same path, in the node's cache, rendered there, or copied.

A set is known by its digest, so that no node trains on other images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.data.prepared import MOVED, PreparedSet, read_manifest
from fedvisage.data.selection import split_entry
from fedvisage.datasets.sources import SYNTHETIC, resolve, without_part

COPIES = "sets"
"""The folder of copied sets in a node's cache, by their digests."""


@dataclass(frozen=True)
class NeededSet:
    """A set that sites of a run use."""

    path: Path
    """Its place on the driver, as the run names it."""
    absolute: Path
    digest: str
    line: str = ""
    """The line of a rendered set, from which a node can render it."""


def needed_sets(entries: Iterable[str], cache: Path) -> list[NeededSet]:
    """Return the sets of data entries."""
    needed = {}
    for entry in entries:
        line = split_entry(without_part(entry)[0])[0].strip()
        path = resolve(line, cache)
        rendered = line if line.startswith(SYNTHETIC) else ""
        needed[path] = NeededSet(path, path.absolute(), read_manifest(path).digest, rendered)
    return list(needed.values())


def find_sets(needed: Sequence[NeededSet]) -> list[NeededSet]:
    """Find or render sets on this node for the views that its process opens later; return those that are missing."""
    missing = []
    for one in needed:
        if _is(one, one.absolute):
            MOVED[one.path] = one.absolute
        elif _is(one, CACHE / COPIES / one.digest):
            MOVED[one.path] = CACHE / COPIES / one.digest
        elif one.line and _is(one, rendered := resolve(one.line, CACHE)):
            MOVED[one.path] = rendered
        else:
            missing.append(one)
    return missing


def _is(needed: NeededSet, path: Path) -> bool:
    with suppress(UserError):
        return read_manifest(path).digest == needed.digest
    return False


def receive_chunk(digest: str, name: str, chunk: bytes, position: int) -> None:
    """Store a part of a file of a set that is being copied to this node."""
    path = CACHE / COPIES / f"{digest}.partial" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if position else "wb") as file:  # not what an interrupted copy left
        file.write(chunk)


def finish_copy(digest: str) -> None:
    """Check the digest of every file of a copied set, and give it its name."""
    folder = CACHE / COPIES / f"{digest}.partial"
    copied = PreparedSet.open(folder, verify=True)
    if copied.digest != digest:
        raise UserError(str(folder), "is not the set that was sent; start again")
    folder.rename(folder.with_name(digest))
