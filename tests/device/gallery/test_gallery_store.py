"""The gallery's file: enrolment, search, key rotation and deletion."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.device.gallery.files import KEY, MODEL, NEWER, random_faces, run_sql
from tests.refusals import refused

from fedvisage.device.gallery.file import ModelChanged, NameTaken, UnknownName, WrongKey, new_key
from fedvisage.device.gallery.records import checked_name
from fedvisage.device.gallery.search import Gallery, Index
from fedvisage.metrics.similarity import Features

SIZE = 64


faces = partial(random_faces, size=SIZE)


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_search_returns_the_cosine_with_the_mean_of_enrolled_faces(gallery: Gallery) -> None:
    for number in range(5):
        gallery.enrol("default", f"person {number}", faces(number, 3), MODEL)
    query = faces(2, 3)[:1]
    (hits,) = gallery.search("default", query, MODEL, most=3)
    mean = faces(2, 3).mean(axis=0)
    assert hits[0].name == "person 2"
    assert hits[0].similarity == pytest.approx(float(query[0] @ mean / np.linalg.norm(mean)), abs=1e-6)
    assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
    assert gallery.similarity("default", "person 2", query[0], MODEL) == hits[0]


def test_later_faces_join_the_mean(gallery: Gallery) -> None:
    both = faces(0, 2)
    gallery.enrol("default", "anna", both[:1], MODEL)
    assert gallery.search("default", both[:1], MODEL)[0][0].similarity == pytest.approx(1, abs=1e-6)
    gallery.enrol("default", "anna", both[1:], MODEL)
    together = both.sum(axis=0) / np.linalg.norm(both.sum(axis=0))
    assert gallery.search("default", both[:1], MODEL)[0][0].similarity == pytest.approx(together @ both[0], abs=1e-6)
    assert len(gallery.faces("default", "anna")) == 2
    gallery.remove_face("default", gallery.faces("default", "anna")[0].id)
    assert gallery.search("default", both[1:], MODEL)[0][0].similarity == pytest.approx(1, abs=1e-6)


def test_changes_by_another_process_are_visible(gallery: Gallery) -> None:
    gallery.enrol("default", "anna", faces(0), MODEL)
    with Gallery(gallery.path, KEY) as other:
        assert len(other.search("default", faces(0), MODEL)[0]) == 1
        gallery.enrol("default", "bob", faces(1), MODEL)
        assert other.search("default", faces(1), MODEL)[0][0].name == "bob"
        gallery.enrol("default", "bob", faces(2), MODEL)
        assert other.search("default", faces(2), MODEL)[0][0].similarity < 0.99
        gallery.remove("default", "bob")
        assert [hit.name for hit in other.search("default", faces(1), MODEL)[0]] == ["anna"]


def test_templates_of_another_model_are_refused_until_reenrolment(gallery: Gallery) -> None:
    gallery.enrol("default", "anna", faces(0), MODEL)
    gallery.enrol("default", "bob", faces(1), MODEL)
    gallery.search("default", faces(0), MODEL)
    with refused("default", "anna, bob", "sha256:aaaaaaaaaaaa", "sha256:bbbbbbbbbbbb", error=ModelChanged):
        gallery.search("default", faces(0), NEWER)
    assert gallery.enrol("default", "bob", faces(5), NEWER)[2] == 1  # the old template was replaced
    assert gallery.similarity("default", "bob", faces(5)[0], NEWER).similarity == pytest.approx(1, abs=1e-6)
    with refused("default", "anna", error=ModelChanged):
        gallery.search("default", faces(5), NEWER)
    with refused("default", "anna", error=ModelChanged):
        gallery.similarity("default", "anna", faces(5)[0], NEWER)
    with refused("default", "bob", error=ModelChanged):
        gallery.search("default", faces(5), MODEL)
    gallery.remove("default", "anna")
    assert [hit.name for hit in gallery.search("default", faces(5), NEWER)[0]] == ["bob"]


def test_collections_are_separate(gallery: Gallery) -> None:
    gallery.add_collection("staff")
    gallery.enrol("default", "anna", faces(0), MODEL)
    gallery.enrol("staff", "anna", faces(1), MODEL)
    assert [collection.name for collection in gallery.collections()] == ["default", "staff"]
    assert gallery.search("staff", faces(0), MODEL)[0][0].similarity < 0.9
    gallery.remove_collection("staff")
    assert gallery.search("default", faces(0), MODEL)[0][0].similarity == pytest.approx(1, abs=1e-6)
    with refused("staff", "default", error=UnknownName):
        gallery.people("staff")


@pytest.mark.parametrize("compact", [False, True])
def test_deleted_person_leaves_no_bytes_in_the_file(gallery: Gallery, compact: bool) -> None:
    """Search all files of the database for every 12-byte window of the person's rows."""
    for number in range(40):
        gallery.enrol("default", f"person {number}", faces(number, 2), MODEL)
    person = gallery.person("default", "person 17").id
    rows = run_sql(gallery.path, f"SELECT * FROM persons WHERE id = '{person}'")
    rows += run_sql(gallery.path, f"SELECT id, template FROM faces WHERE person = '{person}'")
    traces = [trace if isinstance(trace, bytes) else str(trace).encode() for row in rows for trace in row]
    traces = [trace for trace in traces if len(trace) >= 18 and not trace.isdigit() and not trace.startswith(b"20")]
    assert len(traces) >= 8
    windows = [trace[at : at + 12] for trace in traces for at in range(0, len(trace) - 11)]
    before = bytes_of(gallery.path.parent)
    assert all(trace in before for trace in traces)
    gallery.remove("default", "person 17")
    if compact:
        gallery.compact()
    left = bytes_of(gallery.path.parent)
    assert not [trace for trace in windows if trace in left]
    assert len(gallery.search("default", faces(3, 2)[:1], MODEL, most=100)[0]) == 39


def test_deletion_overwrites_a_write_ahead_log_of_another_program(gallery: Gallery) -> None:
    gallery.enrol("default", "anna", faces(0), MODEL)
    path = gallery.path
    gallery.close()
    assert run_sql(path, "PRAGMA journal_mode = WAL") == [("wal",)]
    ((template,),) = run_sql(path, "UPDATE faces SET pad_score = pad_score", "SELECT template FROM faces")
    assert isinstance(template, bytes)
    with Gallery(path, KEY) as again:
        again.remove("default", "anna")
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        assert template[:16] not in path.read_bytes()


def test_names_and_templates_are_unreadable_in_the_file(gallery: Gallery) -> None:
    gallery.enrol("default", "Ada Lovelace", faces(0), MODEL)
    stored = gallery.path.read_bytes()
    assert b"Lovelace" not in stored
    assert faces(0).tobytes()[:16] not in stored


def test_only_the_new_key_opens_after_rotation(gallery: Gallery) -> None:
    gallery.add_collection("again", renewable=True)
    for collection in ("default", "again"):
        gallery.enrol(collection, "anna", faces(0), MODEL)
    before = run_sql(gallery.path, "SELECT template FROM faces")
    ((old,),) = run_sql(gallery.path, "SELECT key FROM persons LIMIT 1")
    key = new_key()
    assert gallery.turn_key(key) == 2
    gallery.enrol("default", "bob", faces(1), MODEL)  # the process that rotated the key can still write
    with refused("door.gallery", "key", error=WrongKey):
        Gallery(gallery.path, KEY)
    with Gallery(gallery.path, key) as again:
        assert again.search("default", faces(0), MODEL)[0][0].name == "anna"
        assert again.search("again", faces(0), MODEL)[0][0].similarity == pytest.approx(1, abs=1e-6)
        assert again.search("default", faces(1), MODEL)[0][0].name == "bob"
    assert run_sql(gallery.path, "SELECT template FROM faces")[:2] == before
    assert isinstance(old, bytes)
    assert old not in bytes_of(gallery.path.parent)


def test_old_key_fails_after_rotation_by_another_process(gallery: Gallery) -> None:
    gallery.enrol("default", "anna", faces(0), MODEL)
    with Gallery(gallery.path, KEY) as other:
        other.turn_key(new_key())
        with refused("door.gallery", "key", "rotated", error=WrongKey):
            gallery.enrol("default", "bob", faces(1), MODEL)
        with refused("door.gallery", "key", "rotated", error=WrongKey):
            gallery.search("default", faces(0), MODEL)
        assert [person.name for person in other.people("default")] == ["anna"]


@pytest.mark.parametrize("model", [MODEL, NEWER])
def test_collections_are_loaded_before_they_are_searched(gallery: Gallery, model: str) -> None:
    gallery.enrol("default", "anna", faces(0), MODEL)
    gallery.add_collection("empty")
    notes = gallery.warm(model)
    assert ["anna" in line for line in notes] == ([] if model == MODEL else [True])
    gallery.enrol("empty", "bob", faces(1), model)
    assert gallery.search("empty", faces(1), model)[0][0].name == "bob"


def test_transaction_is_atomic(gallery: Gallery) -> None:
    gallery.enrol("default", "anna", faces(1), MODEL)

    def remove_two() -> None:
        with gallery.transaction():
            gallery.remove("default", "anna")
            gallery.remove("default", "nobody")

    with pytest.raises(UnknownName):
        remove_two()
    assert [person.name for person in gallery.people("default")] == ["anna"]
    with gallery.transaction():
        gallery.remove("default", "anna")
        gallery.enrol("default", "bob", faces(2), MODEL)
        assert [person.name for person in gallery.people("default")] == ["bob"]
    assert [hit.name for hit in gallery.search("default", faces(2), MODEL)[0]] == ["bob"]


def test_invalid_and_existing_names_are_refused(gallery: Gallery) -> None:
    for name in ("", " ", "a\nb", "x" * 201, "p_0123456789abcdef"):
        with refused("person", "name"):
            gallery.enrol("default", name, faces(0), MODEL)
    with pytest.raises(NameTaken):
        gallery.add_collection("default")
    with refused("nobody", "default", error=UnknownName):
        gallery.remove("default", "nobody")
    with refused("embedding", "zero"):
        gallery.enrol("default", "anna", np.full((1, SIZE), np.nan, np.float32), MODEL)
    gallery.enrol("default", "anna", faces(0), MODEL)
    with refused("embedding", "32", "64"):
        gallery.enrol("default", "bob", faces(0, size=32), MODEL)
    assert [person.name for person in gallery.people("default")] == ["anna"]


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        *((" anna", "space"), ("anna ", "space"), ("\u0301", "marks"), ("\u0301 \u0308", "marks")),
        ("a\u2028b", "line"),
        *(("an\u200bna", "U+200B"), ("an\u2060na", "U+2060"), ("anna\u3164", "U+3164"), ("\u2800", "U+2800")),
        *(("an\u034fna", "U+034F"), ("anna\ufe0f", "U+FE0F"), ("anna\U000e0100", "U+E0100")),
    ],
)
def test_confusable_new_name_is_refused(gallery: Gallery, name: str, keyword: str) -> None:
    with refused("person", keyword):
        gallery.enrol("default", name, faces(0), MODEL)
    with refused("collection", keyword):
        gallery.add_collection(name)


def test_formerly_accepted_name_can_get_more_faces(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("fedvisage.device.gallery.store.new_name", checked_name)
        gallery.enrol("default", "anna ", faces(0), MODEL)
    gallery.enrol("default", "anna ", faces(1), MODEL)
    assert len(gallery.faces("default", "anna ")) == 2
    gallery.remove("default", "anna ")


# The index gives the same matches as a matrix product and a sort, after any additions and removals.

ROWS = 100


@pytest.mark.parametrize("query_count", [1, 7, 300])
@pytest.mark.parametrize("most", [1, 5, 40])
def test_search_has_full_recall(query_count: int, most: int) -> None:
    people, faces = random_faces(0, ROWS * 2 + 77), random_faces(1, query_count)
    index = Index(16, ROWS)
    for number, vector in enumerate(people):
        index.put(str(number), vector)
    results = index.search(faces, most)
    similarity = faces @ people.T
    for row, hits in enumerate(results):
        expected = np.argsort(-similarity[row], kind="stable")[:most]
        assert [int(name) for name, _ in hits] == expected.tolist()
        assert [value for _, value in hits] == pytest.approx(similarity[row][expected].tolist(), abs=1e-5)


def test_adding_and_removing_people_keeps_the_others() -> None:
    rng, index, kept = np.random.default_rng(2), Index(16, ROWS), dict[str, Features]()
    for step, vector in enumerate(random_faces(3, 3 * ROWS)):
        name = str(int(rng.integers(ROWS + 500)))
        if step % 3 == 2:
            index.drop(name)
            kept.pop(name, None)
        else:
            index.put(name, vector)
            kept[name] = vector
    assert len(index) == len(kept)
    names, matrix = list(kept), np.stack(list(kept.values()))
    for row, hits in enumerate(index.search(random_faces(4, 5), 3)):
        similarity = matrix @ random_faces(4, 5)[row]
        assert [name for name, _ in hits] == [names[at] for at in np.argsort(-similarity)[:3]]
    for name in names:
        index.drop(name)
    assert index.search(random_faces(4, 2), 3) == [[], []]


def test_search_returns_all_people_if_there_are_fewer_than_requested() -> None:
    index = Index(16, ROWS)
    for number, vector in enumerate(random_faces(0, 3)):
        index.put(str(number), vector)
    assert {name for name, _ in index.search(random_faces(1, 1), 10)[0]} == {"0", "1", "2"}
