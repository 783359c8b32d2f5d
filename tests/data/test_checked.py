"""Bytes that changed are refused before training; bytes that did not are not read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.refusals import refused

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.data import integrity
from fedvisage.data.integrity import BLOCK, BLOCKS, Snapshot, check_bytes
from fedvisage.data.prepared import IMAGES
from fedvisage.data.writer import Writer


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A set whose pictures are some more blocks than are looked at each time."""
    count, size = 100, 128
    images = np.random.default_rng(0).integers(0, 255, (count, size, size, 3), dtype=np.uint8)
    assert images.nbytes > (BLOCKS + 4) * BLOCK
    with Writer(tmp_path / "set", name="set", size=size, source="noise") as out:
        out.add(
            images,
            label=[1] * count,
            species=["bonafide"] * count,
            frame=[0] * count,
            split=["train"] * count,
            subject=[f"s{n}" for n in range(count)],
            video=[f"v{n}" for n in range(count)],
            item=[str(n) for n in range(count)],
        )
    return tmp_path / "set"


def change(path: Path, block: int, *, times: bool) -> None:
    """Change one byte of a block; with ``times`` as an editor does, without as damage of a disk would."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(block * BLOCK + 5)
        byte = file.read(1)[0]
        file.seek(block * BLOCK + 5)
        file.write(bytes([byte ^ 1]))
    if times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


def pictures_are_refused(prepared: Path, cache: Path) -> bool:
    """Return whether a check refuses the set's pictures."""
    try:
        check_bytes(prepared, cache)
    except UserError as error:
        return error.place == str(prepared / IMAGES)
    return False


def as_if_untouched(path: Path, cache: Path) -> None:
    """Put today's times of a file into what is kept, for a file system that did not notice a change."""
    record = next((cache / integrity.FOLDER).iterdir())
    known = read_json(record)
    state = path.stat()
    known["times"][path.name] = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    write_json(record, known)


def test_a_set_of_changed_bytes_is_refused_when_it_is_first_seen(prepared: Path, tmp_path: Path) -> None:
    change(prepared / IMAGES, 30, times=False)
    with refused(prepared / IMAGES, "SHA-256"):
        check_bytes(prepared, tmp_path / "cache")


def test_any_edit_after_the_first_time_is_found_by_its_times(prepared: Path, tmp_path: Path) -> None:
    for block in (0, 33, 70):
        check_bytes(prepared, tmp_path / "cache")
        change(prepared / IMAGES, block, times=True)
        with refused("images.npy", "SHA-256"):
            check_bytes(prepared, tmp_path / "cache")
        change(prepared / IMAGES, block, times=True)


def test_an_edit_whose_time_was_set_back_is_found(prepared: Path, tmp_path: Path) -> None:
    check_bytes(prepared, tmp_path / "cache")
    before = (prepared / IMAGES).stat()
    change(prepared / IMAGES, 33, times=False)
    os.utime(prepared / IMAGES, ns=(before.st_atime_ns, before.st_mtime_ns))
    with refused("images.npy", "SHA-256"):
        check_bytes(prepared, tmp_path / "cache")


def test_damage_that_leaves_times_alone_is_found_in_most_blocks_and_by_reading_everything(
    prepared: Path, tmp_path: Path
) -> None:
    images, cache = prepared / IMAGES, tmp_path / "cache"
    check_bytes(prepared, cache)
    count, found = -(-images.stat().st_size // BLOCK), []
    for block in (0, 20, 40, 60, count - 1):
        change(images, block, times=False)
        as_if_untouched(images, cache)
        if pictures_are_refused(prepared, cache):
            found.append(block)
        with refused("images.npy", "SHA-256"):
            check_bytes(prepared, cache, whole=True)
        change(images, block, times=False)
        as_if_untouched(images, cache)
    assert {0, count - 1} <= set(found)
    assert len(found) >= 4  # 64 of 76 blocks are looked at


def test_a_set_that_was_touched_only_is_read_once_and_taken(prepared: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    check_bytes(prepared, cache)
    record = next((cache / integrity.FOLDER).iterdir())
    first = record.read_bytes()
    check_bytes(prepared, cache)
    assert record.read_bytes() == first
    os.utime(prepared / IMAGES)
    check_bytes(prepared, cache)
    assert record.read_bytes() != first


def test_a_record_that_is_damaged_or_cannot_be_kept_means_reading_again(prepared: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    check_bytes(prepared, cache)
    next((cache / integrity.FOLDER).iterdir()).write_text("{")
    check_bytes(prepared, cache)
    (tmp_path / "file").write_text("no directory")
    check_bytes(prepared, tmp_path / "file")
    change(prepared / IMAGES, 3, times=False)
    with refused("images.npy", "SHA-256"):
        check_bytes(prepared, tmp_path / "file")


def edit(path: Path) -> None:
    change(path, 3, times=True)


def damage(path: Path) -> None:
    """Damage the first block, and set the times back."""
    before = path.stat()
    change(path, 0, times=False)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_a_copy(path: Path) -> None:
    before, content = path.stat(), path.read_bytes()
    path.with_suffix(".new").write_bytes(content)
    os.utime(path.with_suffix(".new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("deed", [edit, damage, replace_by_a_copy, Path.unlink])
def test_a_snapshot_names_the_file_that_changed_while_it_was_read(
    prepared: Path, deed: Callable[[Path], object]
) -> None:
    snapshot = Snapshot([prepared])
    assert snapshot.changed_file() is None
    deed(prepared / IMAGES)
    assert snapshot.changed_file() == prepared / IMAGES
