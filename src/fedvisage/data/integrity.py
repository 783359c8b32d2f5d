"""Whether the bytes of a prepared set are still those that its `set.json` promises, asked before anything trains.

Reading everything takes long for a large set, so it is done when a set is first seen in its place, and again when size
or time of one of its files changed. Otherwise blocks of each file are compared with their digests of then: the first,
the last, and more that are drawn from the digest of the set. A file that was edited is caught by its times; damage that
leaves the times alone, such as a disk's, is caught as far as it lies in these blocks. What was found is kept in the
cache, never in the set: there a stranger could have written it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Say, unheard
from fedvisage.base.streams import numpy_rng
from fedvisage.data.prepared import Manifest, check_file, read_manifest

FOLDER: Final = "checked"
VERSION: Final = 1
BLOCK: Final = 1 << 16
BLOCKS: Final = 64
"""Blocks of a file that are looked at each time; a file that has no more is read whole."""

_LONG = 1 << 30
"""Bytes of a set from which on it is said that all of it is read."""


def check_bytes(path: Path, cache: Path, *, whole: bool = False, say: Say = unheard) -> None:
    """Refuse a set of which a file was changed or damaged; with `whole`, read all of it in any case."""
    try:
        _check(path, cache, whole, say)
    except OSError as error:
        raise UserError(str(error.filename or path), f"cannot be read: {error.strerror or error}") from error


def _check(path: Path, cache: Path, whole: bool, say: Say) -> None:
    manifest = read_manifest(path)
    record = cache / FOLDER / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
    times = _times(path, manifest)
    known = {} if whole else _known(record)
    if known.get("set") == manifest.digest and known.get("times") == times:
        _compare(path, manifest, known.get("blocks"))
        return
    if (size := sum(entry.bytes for entry in manifest.files.values())) >= _LONG:
        say(f"reading all of {path} ({size / 1e9:.1f} GB) to check its bytes")
    for name, entry in manifest.files.items():
        check_file(path / name, entry, verify=True)
    blocks = {name: _digest_of_blocks(path / name, name, manifest) for name in sorted(manifest.files)}
    if times != _times(path, manifest):
        raise UserError(str(path), "was changed while it was read; wait until it is complete")
    with suppress(OSError, RunFailed):  # nothing depends on it: next time everything is read again
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, {"version": VERSION, "set": manifest.digest, "times": times, "blocks": blocks})


def _times(path: Path, manifest: Manifest) -> dict[str, list[int]]:
    """Return size and times of each file; the time of its last change cannot be set back as that of its content can."""
    states = {name: (path / name).lstat() for name in sorted(manifest.files) if (path / name).exists()}
    return {name: [state.st_size, state.st_mtime_ns, state.st_ctime_ns] for name, state in states.items()}


def _known(record: Path) -> Mapping[str, Any]:
    """Return what was found earlier; what cannot be read, or is of another version, is as good as nothing."""
    if not record.exists():
        return {}
    with suppress(UserError):
        found = read_json(record)
        return found if found.get("version") == VERSION else {}
    return {}


def _compare(path: Path, manifest: Manifest, blocks: Any) -> None:
    for name, entry in manifest.files.items():
        check_file(path / name, entry, verify=False)
        if not isinstance(blocks, dict) or blocks.get(name) != _digest_of_blocks(path / name, name, manifest):
            raise UserError(str(path / name), "is not what it was when all of it was last checked: the file was "
                            "changed or damaged, though its times were not; copy or make the set again")  # fmt: skip


def _digest_of_blocks(path: Path, name: str, manifest: Manifest) -> str:
    """Return the digest of a file's first block, its last, and those that the set's digest draws."""
    count = -(-path.stat().st_size // BLOCK)
    drawn = list(range(count))
    if count > BLOCKS:
        within = numpy_rng(0, "blocks", manifest.digest, name).choice(count - 2, BLOCKS - 2, replace=False) + 1
        drawn = sorted({0, count - 1, *within.tolist()})
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in drawn:
            file.seek(number * BLOCK)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()
