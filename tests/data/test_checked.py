"""Changed bytes are refused before training, and unchanged ones are not read again."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.data.small_sets import pixels, write_set
from tests.refusals import refused

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.data import integrity
from fedvisage.data.integrity import BLOCK, BLOCKS, Snapshot, check_bytes
from fedvisage.data.prepared import IMAGES


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A set whose pictures have more blocks than one check reads."""
    images = pixels(100, 128)
    assert images.nbytes > (BLOCKS + 4) * BLOCK
    return write_set(tmp_path / "set", images).path


def change(path: Path, block: int, *, times: bool) -> None:
    """Change one byte of a block; an editor changes the ``times``, too, and a damaged disk does not."""
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
    """Write the times of a file into the record, as if the file system had not noticed a change."""
    record = next((cache / integrity.FOLDER).iterdir())
    known = read_json(record)
    state = path.stat()
    known["times"][path.name] = [state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    write_json(record, known)


def test_changed_bytes_are_refused_at_the_first_check(prepared: Path, tmp_path: Path) -> None:
    change(prepared / IMAGES, 30, times=False)
    with refused(prepared / IMAGES, "SHA-256"):
        check_bytes(prepared, tmp_path / "cache")


def test_edits_after_the_first_check_are_noticed_by_their_times(prepared: Path, tmp_path: Path) -> None:
    for block in (0, 33, 70):
        check_bytes(prepared, tmp_path / "cache")
        change(prepared / IMAGES, block, times=True)
        with refused("images.npy", "SHA-256"):
            check_bytes(prepared, tmp_path / "cache")
        change(prepared / IMAGES, block, times=True)


def test_edit_with_restored_times_is_noticed(prepared: Path, tmp_path: Path) -> None:
    check_bytes(prepared, tmp_path / "cache")
    damage(prepared / IMAGES, 33)
    with refused("images.npy", "SHA-256"):
        check_bytes(prepared, tmp_path / "cache")


def test_silent_damage_is_noticed_in_most_blocks(prepared: Path, tmp_path: Path) -> None:
    images, cache = prepared / IMAGES, tmp_path / "cache"
    check_bytes(prepared, cache)
    count, noticed = -(-images.stat().st_size // BLOCK), []
    for block in (0, 20, 40, 60, count - 1):
        change(images, block, times=False)
        as_if_untouched(images, cache)
        if pictures_are_refused(prepared, cache):
            noticed.append(block)
        with refused("images.npy", "SHA-256"):
            check_bytes(prepared, cache, whole=True)
        change(images, block, times=False)
        as_if_untouched(images, cache)
    assert {0, count - 1} <= set(noticed)
    assert len(noticed) >= 4  # a check reads 64 of 75 blocks


def test_touched_set_is_read_again_and_accepted(prepared: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    check_bytes(prepared, cache)
    record = next((cache / integrity.FOLDER).iterdir())
    first = record.read_bytes()
    check_bytes(prepared, cache)
    assert record.read_bytes() == first
    os.utime(prepared / IMAGES)
    check_bytes(prepared, cache)
    assert record.read_bytes() != first


def test_damaged_or_unwritable_record_forces_a_full_check(prepared: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    check_bytes(prepared, cache)
    next((cache / integrity.FOLDER).iterdir()).write_text("{")
    check_bytes(prepared, cache)
    (tmp_path / "file").write_text("no directory")
    check_bytes(prepared, tmp_path / "file")
    change(prepared / IMAGES, 3, times=False)
    with refused("images.npy", "SHA-256"):
        check_bytes(prepared, tmp_path / "file")


def damage(path: Path, block: int = 0) -> None:
    """Change a byte of a block, and set the times back."""
    before = path.stat()
    change(path, block, times=False)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_a_copy(path: Path) -> None:
    before, content = path.stat(), path.read_bytes()
    path.with_suffix(".new").write_bytes(content)
    os.utime(path.with_suffix(".new"), ns=(before.st_atime_ns, before.st_mtime_ns))
    path.with_suffix(".new").rename(path)


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "act", [partial(change, block=3, times=True), damage, replace_by_a_copy, replace_by_a_pipe, Path.unlink]
)
def test_snapshot_names_the_changed_file(prepared: Path, act: Callable[[Path], object]) -> None:
    snapshot = Snapshot([prepared])
    assert snapshot.changed_file() is None
    act(prepared / IMAGES)
    assert snapshot.changed_file() == prepared / IMAGES
