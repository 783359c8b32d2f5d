"""Integrity checks of prepared sets before training: their bytes must match the digests in `set.json`.

Reading a large set completely takes long. A full check happens when a set is first used at its path, and again when the
size or time of one of its files changes. Otherwise blocks of each file are compared with their earlier digests: the
first, the last, and others chosen by the digest of the set. File times reveal edits; damage that leaves the times
unchanged, such as a disk error, is detected only within these blocks. A snapshot compares the same blocks while a job
reads a set. The results are kept in the cache and never in the set itself, which may come from an untrusted source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import open_regular, read_json, write_json
from fedvisage.base.progress import Say, discard
from fedvisage.base.streams import numpy_rng
from fedvisage.data.prepared import Manifest, check_file, read_manifest

FOLDER: Final = "checked"
VERSION: Final = 1
BLOCK: Final = 1 << 16
BLOCKS: Final = 64
"""Number of blocks of a file to check each time; shorter files are read completely."""

_LONG = 1 << 30
"""Size of a set, in bytes, from which a complete read is reported."""


def check_bytes(path: Path, cache: Path, *, whole: bool = False, say: Say = discard) -> None:
    """Raise a UserError if a file of a set was changed or damaged; `whole` forces a complete read."""
    try:
        manifest = read_manifest(path)
        record = cache / FOLDER / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
        times = _times(path, manifest)
        previous: Mapping[str, Any] = {}
        if not whole and record.exists():
            with suppress(UserError):  # an unreadable record counts as none
                previous = read_json(record)
        current = {"version": VERSION, "set": manifest.digest, "times": times}
        if all(previous.get(name) == value for name, value in current.items()):
            _compare(path, manifest, previous.get("blocks"))
            return
        if (size := sum(entry.bytes for entry in manifest.files.values())) >= _LONG:
            say(f"reading all of {path} ({size / 1e9:.1f} GB) to check its bytes")
        for name, entry in manifest.files.items():
            check_file(path / name, entry, verify=True)
        blocks = {name: _digest_of_blocks(path / name, name, manifest) for name in sorted(manifest.files)}
        if times != _times(path, manifest):
            raise UserError(str(path), "changed while it was being read; wait until it is complete")
    except OSError as error:
        raise UserError(str(error.filename or path), f"cannot be read: {error.strerror or error}") from error
    with suppress(OSError, RunFailed):  # optional: without the record the next check reads everything
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, current | {"blocks": blocks})


class Snapshot:
    """The state of the files of prepared sets at one moment, to detect changes while a job reads them."""

    def __init__(self, sets: Iterable[Path]) -> None:
        """Take it: sizes, times, inodes, and the digests of some blocks."""
        self._manifests = {path: read_manifest(path) for path in sets}
        self._states = self._read_states()

    def changed_file(self) -> Path | None:
        """Return a file that was changed, replaced or removed since the snapshot, or None."""
        states = self._read_states()
        return next((path for path, state in self._states.items() if states[path] != state), None)

    def _read_states(self) -> dict[Path, tuple[int | str, ...]]:
        """Return the state of each file; it is empty for an unreadable file."""
        states: dict[Path, tuple[int | str, ...]] = {}
        for path, manifest in self._manifests.items():
            for name in sorted(manifest.files):
                try:
                    status, digest = (path / name).stat(), _digest_of_blocks(path / name, name, manifest)
                    states[path / name] = status.st_size, status.st_mtime_ns, status.st_ino, digest
                except (OSError, UserError):  # missing, or no regular file any more
                    states[path / name] = ()
        return states


def _times(path: Path, manifest: Manifest) -> dict[str, list[int]]:
    """Return the size and times of each file. Unlike the modification time, the change time cannot be set back."""
    states = {name: (path / name).lstat() for name in sorted(manifest.files) if (path / name).exists()}
    return {name: [state.st_size, state.st_mtime_ns, state.st_ctime_ns] for name, state in states.items()}


def _compare(path: Path, manifest: Manifest, blocks: Any) -> None:
    for name, entry in manifest.files.items():
        check_file(path / name, entry, verify=False)
        if not isinstance(blocks, dict) or blocks.get(name) != _digest_of_blocks(path / name, name, manifest):
            raise UserError(
                str(path / name),
                "differs from its last full check: the file was "
                "changed or damaged although its timestamps are the same; copy or create the set again",
            )


def _digest_of_blocks(path: Path, name: str, manifest: Manifest) -> str:
    """Return the digest of the first and last block of a file, and of blocks drawn from the digest of the set."""
    count = -(-path.stat().st_size // BLOCK)
    block_numbers = list(range(count))
    if count > BLOCKS:
        inner = numpy_rng(0, "blocks", manifest.digest, name).choice(count - 2, BLOCKS - 2, replace=False) + 1
        block_numbers = sorted({0, count - 1, *inner.tolist()})
    digest = hashlib.sha256()
    with open(path, "rb", opener=open_regular) as file:
        for number in block_numbers:
            file.seek(number * BLOCK)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()
