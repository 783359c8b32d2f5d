"""A gallery of version 1 is migrated by a command, which keeps people, faces, times, scores and a backup."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from tests.commands import output_of, refusal_of

from fedvisage.device.gallery.file import NameTaken, WrongKey, key_from
from fedvisage.device.gallery.search import Gallery
from fedvisage.metrics.similarity import Features, normalise

STORED = Path(__file__).parent / "from-0.1" / "gallery"
MODEL = "sha256:" + "a" * 64


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(STORED, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


KEY = ("door.gallery", "--key", "gallery.key")


def face(seed: int, count: int = 1) -> Features:
    """Return an embedding as in the stored gallery."""
    return normalise(np.random.default_rng(seed).standard_normal((count, 16)))


def test_old_gallery_is_refused_with_the_command_to_run(here: Path) -> None:
    assert "fedvisage gallery migrate door.gallery" in refusal_of("gallery", "list", *KEY).message


def test_old_gallery_is_migrated_with_a_backup(here: Path) -> None:
    before, plain = (here / "door.gallery").read_bytes(), sqlite3.connect(STORED / "door.gallery")
    rows = plain.execute("SELECT id, person, created, pad_score FROM faces ORDER BY rowid").fetchall()
    plain.close()
    output = output_of("gallery", "migrate", *KEY)
    assert output.count("\n") == 1
    assert "6 people" in output
    assert "door.gallery.v1" in output
    assert (here / "door.gallery.v1").read_bytes() == before
    assert sorted(path.name for path in here.iterdir()) == [
        "door.gallery",
        "door.gallery.v1",
        "gallery.key",
        "gallery.key.counters",
    ]
    with Gallery(here / "door.gallery", key_from(here / "gallery.key"), counters=here / "gallery.key.counters") as now:
        for collection in ("default", "staff"):
            assert [person.name for person in now.people(collection)] == ["anna", "bob", "carol"]
            assert now.search(collection, face(2), MODEL)[0][0].name == "carol"
        people = [entry for collection in ("default", "staff") for entry in now.everybody(collection)]
        faces = [each for _, faces in people for each in faces]
        assert {(each.id, each.person, each.created, each.pad_score) for each in faces} == set(rows)
        now.enrol("staff", "dave", face(9), MODEL)
        now.remove("default", "anna")


def test_old_copy_is_not_migrated_a_second_time(here: Path) -> None:
    """Otherwise the backup would restore people who were removed since."""
    output_of("gallery", "migrate", *KEY)
    refusal_of("gallery", "migrate", *KEY)
    output_of("gallery", "remove", "door.gallery", "anna", "--key", "gallery.key")
    (here / "door.gallery.v1").replace(here / "door.gallery")
    assert "already migrated" in refusal_of("gallery", "migrate", *KEY).message


def test_wrong_key_damaged_record_and_existing_backup_leave_the_old_gallery_unchanged(here: Path) -> None:
    before = (here / "door.gallery").read_bytes()
    (here / "other.key").write_text("00" * 32)
    assert isinstance(refusal_of("gallery", "migrate", "door.gallery", "--key", "other.key"), WrongKey)
    (here / "door.gallery.v1").write_text("mine")
    assert isinstance(refusal_of("gallery", "migrate", *KEY), NameTaken)
    (here / "door.gallery.v1").unlink()
    assert (here / "door.gallery").read_bytes() == before
    plain = sqlite3.connect(here / "door.gallery")
    plain.execute("UPDATE faces SET template = zeroblob(92) WHERE rowid = 1")
    plain.commit()
    plain.close()
    damaged = (here / "door.gallery").read_bytes()
    assert "face f_" in refusal_of("gallery", "migrate", *KEY).message
    assert (here / "door.gallery").read_bytes() == damaged
    assert sorted(path.name for path in here.iterdir()) == ["door.gallery", "gallery.key", "other.key"]
