"""Invalid and unwritable gallery files are reported in one line that names the file."""

import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.device.gallery.files import KEY, MODEL, random_faces
from tests.refusals import failed, refused

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.device.gallery.file import Busy, NameTaken, WrongKey, key_from, make_key_file
from fedvisage.device.gallery.search import Gallery
from fedvisage.metrics.similarity import normalise


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "door.gallery"
    with Gallery.create(path, KEY) as gallery:
        gallery.add_collection()
        for number in range(20):
            gallery.enrol("default", f"person {number}", random_faces(number, size=512), MODEL)
    return path


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def check_refused(path: Path, *keywords: str) -> None:
    with refused(path, *keywords):
        Gallery(path, KEY, patience=0)


def test_file_of_another_version_is_refused(path: Path, database: sqlite3.Connection) -> None:
    database.execute("PRAGMA user_version = 7")
    check_refused(path, "version 7")


def test_truncated_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 5000, 100, 50, 0):
        path.write_bytes(whole[:length])
        check_refused(path)


def test_changed_bytes_are_refused_or_attributed_to_a_record(path: Path) -> None:
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(30):
        spoilt, at = bytearray(whole), int(rng.integers(len(whole)))
        spoilt[at : at + 200] = rng.bytes(len(spoilt[at : at + 200]))
        path.write_bytes(spoilt)
        try:
            with Gallery(path, KEY, patience=0) as gallery:
                gallery.search("default", normalise(np.ones((1, 512), np.float32)), MODEL)
        except (UserError, RunFailed) as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_file_without_a_gallery_is_refused(tmp_path: Path) -> None:
    text, other, pipe = tmp_path / "a.txt", tmp_path / "other.db", tmp_path / "pipe"
    text.write_text("no database at all, " * 100)
    sqlite3.connect(other).execute("CREATE TABLE things (name)").connection.close()
    os.mkfifo(pipe)
    check_refused(text, "SQLite")
    check_refused(other, "gallery")
    check_refused(pipe, "regular file")
    check_refused(tmp_path, "regular file")
    check_refused(tmp_path / "nothing", "exist")


def test_planted_trigger_is_not_run(path: Path, database: sqlite3.Connection) -> None:
    action = "INSERT INTO meta VALUES ('kept', OLD.key)"
    database.execute(f"CREATE TRIGGER planted AFTER DELETE ON persons BEGIN {action}; END")
    check_refused(path, "tables")


def test_file_locked_by_another_process_is_refused(path: Path, database: sqlite3.Connection) -> None:
    with Gallery(path, KEY, patience=0) as gallery:
        database.execute("BEGIN EXCLUSIVE")
        with failed(Busy, "door.gallery", "locked"):
            gallery.people("default")
        with failed(Busy, "door.gallery", "locked"):
            gallery.remove("default", "person 3")
    with failed(Busy, "locked"):
        Gallery(path, KEY, patience=0)
    database.execute("ROLLBACK")
    with Gallery(path, KEY, patience=0) as gallery:
        assert len(gallery.people("default")) == 20


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from fedvisage.base.errors import RunFailed
from fedvisage.device.gallery.search import Gallery
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30_000,) * 2)
with Gallery(path, bytes(range(32))) as opened:
    try:
        for number in range(1000):
            opened.enrol("default", f"late {number}", np.ones((1, 512), np.float32), "sha256:" + "a" * 64)
    except RunFailed as error:
        print(number, error)
"""


def test_full_disk_is_reported_and_keeps_the_gallery(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    number, line = done.stdout.strip().split(" ", 1)
    assert "disk is full" in line
    assert str(path) in line
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    with Gallery(path, KEY) as gallery:
        assert len(gallery.people("default")) == 20 + int(number)


def test_gallery_is_never_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with refused(path, "exists", error=NameTaken):
        Gallery.create(path, KEY)
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path, path: Path) -> None:
    file = tmp_path / "key"
    make_key_file(file)
    key = bytes.fromhex(file.read_text())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key_from(file) == key == key_from(None, {"FEDVISAGE_GALLERY_KEY": key.hex()})
    with refused("key", "exists"):
        make_key_file(file)
    with pytest.raises(WrongKey):
        Gallery(path, key)


@pytest.mark.parametrize("content", ["", "short", "zz" * 32, "00" * 31, "00" * 33, "\0" * 5000])
def test_invalid_key_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with refused(file, "64"):
        key_from(file)
    with refused("FEDVISAGE_GALLERY_KEY" if content else "--key", "key" if content else "FEDVISAGE_GALLERY_KEY"):
        key_from(None, {"FEDVISAGE_GALLERY_KEY": content})
    for path, keyword in ((tmp_path / "nothing", "exist"), (tmp_path, "regular file")):
        with refused(path, keyword):
            key_from(path)
