"""An edit without the key and an older copy of the file are refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.device.gallery.files import KEY, MODEL, open_gallery, random_faces, run_sql
from tests.refusals import refused

from fedvisage.device.gallery.counter import counters_of
from fedvisage.device.gallery.file import NameTaken, WrongKey, new_key
from fedvisage.device.gallery.search import Gallery

STAFF = "(SELECT id FROM collections WHERE name = 'staff')"


def make_gallery(path: Path) -> None:
    """Make a gallery of two collections with three people each."""
    with Gallery.create(path, KEY, counters=path.parent / "counters") as gallery:
        for collection, names in (("visitors", ("mallory", "anna", "bob")), ("staff", ("carol", "dave", "erin"))):
            gallery.add_collection(collection)
            for number, name in enumerate(names):
                gallery.enrol(collection, name, random_faces(len(name) + 10 * number), MODEL, [0.25 + number / 8])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "door.gallery"
    make_gallery(path)
    return path


@pytest.fixture
def counter(path: Path) -> Path:
    (counter,) = (path.parent / "counters").iterdir()
    return counter


def read_everything(path: Path) -> None:
    """Read the people of every collection in each way."""
    with open_gallery(path) as gallery:
        for collection in gallery.collections():
            gallery.everybody(collection.name)
            gallery.search(collection.name, random_faces(0), MODEL)


def names(path: Path) -> dict[str, list[str]]:
    with open_gallery(path) as gallery:
        return {
            collection.name: [person.name for person in gallery.people(collection.name)]
            for collection in gallery.collections()
        }


EDITS = {
    "a person moved": f"UPDATE persons SET collection = {STAFF}",
    "one person moved": f"UPDATE persons SET collection = {STAFF} WHERE collection = 1"
    " AND tag = (SELECT min(tag) FROM persons WHERE collection = 1)",
    "everybody deleted": "DELETE FROM persons",
    "somebody deleted": "DELETE FROM persons WHERE id = (SELECT min(id) FROM persons)",
    "a face deleted": "DELETE FROM faces WHERE number = 1",
    "a collection deleted": "DELETE FROM collections WHERE name = 'staff'",
    "a score forged": "UPDATE faces SET pad_score = 0.99 WHERE number = 1",
    "a score removed": "UPDATE faces SET pad_score = NULL WHERE number = 1",
    "a face's time forged": "UPDATE faces SET created = '2020-01-01T00:00:00+00:00' WHERE number = 1",
    "a person's time forged": "UPDATE persons SET created = '2020-01-01T00:00:00+00:00'",
    "a collection's time forged": "UPDATE collections SET created = '2020-01-01T00:00:00+00:00'",
    "a collection renamed": "UPDATE collections SET name = 'guests' WHERE name = 'visitors'",
    "names of collections swapped": "UPDATE collections SET name = 'x' WHERE name = 'staff';"
    "UPDATE collections SET name = 'staff' WHERE name = 'visitors';"
    "UPDATE collections SET name = 'visitors' WHERE name = 'x'",
    "a template moved": "UPDATE faces SET template = (SELECT template FROM faces WHERE number = 1) WHERE number = 2",
    "a model's digest forged": "UPDATE models SET digest = 'sha256:b'",
    "a model's size forged": "UPDATE models SET size = 17",
    "a face numbered anew": "UPDATE faces SET number = 100 WHERE number = 1",
    "a face given away": "UPDATE faces SET person = (SELECT max(person) FROM faces WHERE number > 1) WHERE number = 1",
    "a face doubled": "INSERT INTO faces SELECT 100, 'f_0123456789abcdef', person, model, template, created, pad_score"
    " FROM faces WHERE number = 1",
    "a person doubled": f"INSERT INTO persons SELECT 'p_0123456789abcdef', {STAFF}, tag, key, name, created"
    " FROM persons WHERE collection != 2 LIMIT 1",
    "a tag of another type": "UPDATE persons SET tag = 'text' WHERE id = (SELECT min(id) FROM persons)",
    "an id of another type": "UPDATE faces SET id = x'00' WHERE number = 1",
}


@pytest.mark.long
@pytest.mark.parametrize("edit", EDITS)
def test_edit_without_the_key_is_refused(path: Path, edit: str) -> None:
    run_sql(path, "PRAGMA foreign_keys = ON", *EDITS[edit].split(";"))
    with refused(path, "key"):
        read_everything(path)


@pytest.mark.parametrize("edit", ["a person moved", "everybody deleted", "a score forged", "a face doubled"])
def test_open_gallery_refuses_an_edit(path: Path, edit: str) -> None:
    with open_gallery(path) as gallery:
        gallery.search("staff", random_faces(0), MODEL)
        run_sql(path, "PRAGMA foreign_keys = ON", EDITS[edit])
        with refused(path, "visitors", "key"):
            gallery.people("visitors")
        with refused(path, "visitors", "key"):
            gallery.enrol("visitors", "mallory", random_faces(0), MODEL)
        with refused(path, "visitors", "key"):
            gallery.turn_key(new_key())


PUT_BACK = (
    "INSERT INTO persons SELECT * FROM old.persons WHERE id NOT IN (SELECT id FROM persons)",
    "INSERT INTO faces SELECT * FROM old.faces WHERE id NOT IN (SELECT id FROM faces)",
)


def test_restored_rows_of_a_deleted_person_are_refused(path: Path, tmp_path: Path) -> None:
    old = shutil.copy(path, tmp_path / "old")
    with open_gallery(path) as gallery:
        gallery.remove("visitors", "anna")
    run_sql(path, f"ATTACH '{old}' AS old", *PUT_BACK)
    with open_gallery(path) as gallery:
        for read in (lambda: gallery.person("visitors", "anna"), lambda: gallery.people("visitors")):
            with refused(path, "visitors", "key"):
                read()
        assert len(gallery.people("staff")) == 3


def test_restored_collection_with_its_sums_is_refused(path: Path, tmp_path: Path) -> None:
    old = shutil.copy(path, tmp_path / "old")
    with open_gallery(path) as gallery:
        gallery.remove("visitors", "anna")
    members = "UPDATE collections SET members = (SELECT members FROM old.collections AS o WHERE o.id = collections.id)"
    run_sql(path, f"ATTACH '{old}' AS old", *PUT_BACK, members)
    with refused(path, "key"):
        open_gallery(path)


def test_rows_of_another_gallery_with_the_same_key_are_refused(path: Path, tmp_path: Path) -> None:
    make_gallery(tmp_path / "other.gallery")
    run_sql(
        path,
        f"ATTACH '{tmp_path / 'other.gallery'}' AS old",
        "DELETE FROM faces",
        "DELETE FROM persons",
        "INSERT INTO persons SELECT * FROM old.persons",
        "INSERT INTO faces SELECT * FROM old.faces",
    )
    with refused(path, "staff", "key"):
        read_everything(path)


def test_replacement_by_a_gallery_with_the_same_key_is_refused(path: Path, tmp_path: Path) -> None:
    make_gallery(tmp_path / "other.gallery")
    shutil.copy(tmp_path / "other.gallery", path)
    with refused(path, "counter", "accept-state"):
        open_gallery(path)


def test_counter_is_never_overwritten(path: Path, counter: Path) -> None:
    before = counter.read_bytes()
    for place in (path, counter):
        with refused(place, "exists", error=NameTaken):
            make_gallery(path)
        path.unlink(missing_ok=True)
    assert counter.read_bytes() == before


@pytest.mark.parametrize("steps", [1, 2])
def test_older_copy_of_the_file_is_refused(path: Path, tmp_path: Path, steps: int) -> None:
    old = shutil.copy(path, tmp_path / "old")
    with open_gallery(path) as gallery:
        for name in ("anna", "bob")[:steps]:
            gallery.remove("visitors", name)
        shutil.copy(old, path)
        with refused(path, "newest", "accept-state"):
            gallery.people("visitors")
    with refused(path, "newest", "accept-state"):
        open_gallery(path)


def test_accepting_one_copy_refuses_the_others(path: Path, tmp_path: Path) -> None:
    old, counters = shutil.copy(path, tmp_path / "old"), tmp_path / "counters"
    with open_gallery(path) as gallery:
        gallery.remove("visitors", "anna")
        next_one = shutil.copy(path, tmp_path / "next")
        gallery.remove("visitors", "bob")
    shutil.copy(old, path)
    with Gallery(path, KEY) as gallery:
        gallery.accept_state(counters)
    assert "anna" in names(path)["visitors"]
    kept = path.read_bytes()
    for other in (old, next_one):
        shutil.copy(other, path)
        with refused(path, "newest", "11"):
            open_gallery(path)
    path.write_bytes(kept)
    with open_gallery(path) as gallery:
        gallery.enrol("visitors", "zoe", random_faces(1), MODEL)
    assert "zoe" in names(path)["visitors"]


@pytest.mark.parametrize("lost", ["missing", "damaged", "empty"])
def test_lost_counter_is_named_and_can_be_restarted(path: Path, counter: Path, lost: str) -> None:
    if lost == "missing":
        counter.unlink()
    else:
        counter.write_bytes(b"" if lost == "empty" else counter.read_bytes().replace(b"0", b"1"))
    with refused(path, "counter", "accept-state"):
        open_gallery(path)
    with Gallery(path, KEY) as gallery:
        gallery.accept_state(path.parent / "counters")
    assert len(names(path)) == 2


def test_edited_file_cannot_be_accepted(path: Path) -> None:
    run_sql(path, EDITS["a score forged"])
    with Gallery(path, KEY) as gallery, refused(path, "visitors", "key"):
        gallery.accept_state(path.parent / "counters")


def test_unwritable_counter_prevents_the_change(path: Path, counter: Path) -> None:
    with open_gallery(path) as gallery:
        before = path.read_bytes()
        counter.unlink()
        with refused(path, "counter", "--counters"):
            gallery.remove("visitors", "anna")
    assert path.read_bytes() == before


def test_torn_counter_keeps_the_previous_state(path: Path, counter: Path) -> None:
    """After a crash the last line is half written, so the gallery is one state ahead."""
    lines = counter.read_bytes().splitlines(keepends=True)
    newest = lines.index(max(lines))
    lines[newest] = lines[newest][:40] + b"\0" * (len(lines[newest]) - 41) + b"\n"
    counter.write_bytes(b"".join(lines))
    assert len(names(path)["visitors"]) == 3
    with open_gallery(path) as gallery:
        gallery.remove("visitors", "anna")
    assert len(names(path)["visitors"]) == 2


def test_holder_of_the_old_key_cannot_restore_rows(path: Path, tmp_path: Path) -> None:
    old, key = shutil.copy(path, tmp_path / "old"), new_key()
    with open_gallery(path) as gallery:
        gallery.turn_key(key, tmp_path / "new")
        gallery.enrol("staff", "zoe", random_faces(9), MODEL)
    assert [counter.name for counter in (tmp_path / "counters").iterdir()] == []
    with Gallery(path, key, counters=tmp_path / "new") as gallery:
        assert len(gallery.people("staff")) == 4
    turned = path.read_bytes()
    shutil.copy(old, path)
    with pytest.raises(WrongKey):
        Gallery(path, key, counters=tmp_path / "new")
    with refused(path, "door.gallery.counter"):
        open_gallery(path)
    path.write_bytes(turned)
    run_sql(
        path,
        f"ATTACH '{old}' AS old",
        "UPDATE persons SET key = (SELECT key FROM old.persons AS o"
        " WHERE o.id = persons.id) WHERE id IN (SELECT id FROM old.persons)",
    )
    with Gallery(path, key, counters=tmp_path / "new") as gallery, refused(path, "staff", "key"):
        gallery.people("staff")


ENROL = """
import sys
from pathlib import Path
import numpy as np
from fedvisage.device.gallery.search import Gallery
path, who = Path(sys.argv[1]), sys.argv[2]
with Gallery(path, bytes(range(32)), counters=path.parent / "counters", patience=600) as gallery:
    for number in range(25):
        gallery.enrol("staff", f"{who} {number}", np.full((1, 16), number + 1.0, np.float32), "sha256:" + "a" * 64)
        gallery.search("staff", np.ones((1, 16), np.float32), "sha256:" + "a" * 64)
"""


@pytest.mark.long
def test_two_processes_enrol_at_once(path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", ENROL, str(path), who]) for who in ("first", "second")]
    with open_gallery(path) as gallery:
        assert [child.wait() for child in children] == [0, 0]
        assert len(gallery.people("staff")) == 53
        assert len(gallery.search("staff", random_faces(0), MODEL, most=100)[0]) == 53


def test_counters_are_stored_beside_the_key_by_default(tmp_path: Path) -> None:
    key, other = tmp_path / "door.key", tmp_path / "other"
    variable = {"FEDVISAGE_GALLERY_COUNTERS": str(other)}
    assert counters_of(key, None, {}) == tmp_path / "door.key.counters"
    assert counters_of(key, None, variable) == counters_of(None, None, variable) == other
    assert counters_of(key, tmp_path, variable) == tmp_path
    with refused("--counters", "FEDVISAGE_GALLERY_COUNTERS"):
        counters_of(None, None, {})
