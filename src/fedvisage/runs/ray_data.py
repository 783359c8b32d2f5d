"""The sets of a run on the nodes of a Ray cluster: at the same path, in the node's cache, rendered there, or copied.

A set is known by its digest, so that no node trains on other images.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.base.progress import Say
from fedvisage.data.prepared import MOVED, SET, PreparedSet, read_manifest
from fedvisage.data.selection import split_entry
from fedvisage.datasets.sources import SYNTHETIC, resolve, without_part
from fedvisage.runs import engine

COPIES = "sets"
"""The folder of copied sets in a node's cache, by their digests."""
CHUNK = 1 << 26
"""Bytes of a file per message."""


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


# The jobs of a node.


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


def receive_chunk(digest: str, name: str, chunk: bytes) -> None:
    """Append to a file of a set that is being copied to this node."""
    folder = CACHE / COPIES / f"{digest}.partial"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("ab") as file:
        file.write(chunk)


def begin_copy(digest: str) -> None:
    """Remove what an interrupted copy left."""
    shutil.rmtree(CACHE / COPIES / f"{digest}.partial", ignore_errors=True)


def finish_copy(digest: str) -> None:
    """Check the digest of every file of a copied set, and give it its name."""
    folder = CACHE / COPIES / f"{digest}.partial"
    copied = PreparedSet.open(folder, verify=True)
    if copied.digest != digest:
        raise UserError(str(folder), "is not the set that was sent; start again")
    folder.rename(folder.with_name(digest))


# The driver.


class Worker(engine.Worker, Protocol):
    """A worker that knows the name of its node."""

    node: str


def provide_sets(nodes: Sequence[Sequence[Worker]], needed: Sequence[NeededSet], copy: bool, say: Say) -> None:
    """Let the workers of each node find the sets of a run; send each missing set once per node, or name it."""
    looking = [(workers[0], workers[0].submit(find_sets, needed)) for workers in nodes]
    for worker, future in looking:
        for missing in future.result():
            if not copy:
                raise UserError(
                    f"node {worker.node}",
                    f"does not have the set {missing.absolute}; copy it to this path there, or give --copy-data, which "
                    "sends it to the node's cache",
                )
            say(f"copying {missing.absolute} to node {worker.node}")
            _send(missing, worker)
    for future in [worker.submit(find_sets, needed) for workers in nodes for worker in workers]:
        if left := future.result():
            raise UserError(str(left[0].absolute), "changed on a node while the run started; start again")


def _send(needed: NeededSet, worker: Worker) -> None:
    worker.submit(begin_copy, needed.digest).result()
    for name in (SET, *read_manifest(needed.path).files):
        with (needed.path / name).open("rb") as file:
            while chunk := file.read(CHUNK):
                worker.submit(receive_chunk, needed.digest, name, chunk).result()
    worker.submit(finish_copy, needed.digest).result()
