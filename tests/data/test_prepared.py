"""Prepared sets: what is written is read, and nothing else is believed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.making import add_rows, make_set, pixels
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return make_set(tmp_path / "T").path


def test_what_is_written_in_batches_is_read_back(tmp_path: Path) -> None:
    images = pixels(10)
    depth = np.random.default_rng(1).integers(0, 256, (10, 32, 32), dtype=np.uint8)
    points = np.random.default_rng(2).random((10, 5, 2), dtype=np.float32)
    with Writer(tmp_path / "O", name="O", size=8, source="a test", depth=True, points=True) as out:
        for start, end in [(0, 3), (3, 3), (3, 10)]:
            n = end - start
            out.add(
                images[start:end],
                label=np.ones(n, int),
                species=["bonafide"] * n,
                subject=['Ünï, "q"'] * n,
                video=["v"] * n,
                frame=np.arange(start, end),
                split=["test"] * n,
                item=[f"v/{i}" for i in range(start, end)],
                depth=depth[start:end],
                points=points[start:end],
            )
    found = PreparedSet.open(tmp_path / "O", verify=True)
    assert (found.name, found.size, found.source, len(found)) == ("O", 8, "a test", 10)
    assert found.depth is not None
    assert found.points is not None
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.depth, depth)
    np.testing.assert_array_equal(found.points, points)
    assert found.rows.frame.tolist() == list(range(10))
    assert set(found.rows.subject) == {'Ünï, "q"'}
    assert found.rows.item.tolist() == [f"v/{i}" for i in range(10)]


def test_select_returns_the_indices_of_a_split(made: Path) -> None:
    found = PreparedSet.open(made)
    assert found.select("train").tolist() == list(range(12))
    assert found.select("heldout").tolist() == list(range(12, 20))
    assert found.select("test").tolist() == []
    assert found.select(None).tolist() == list(range(20))


def test_arrays_are_read_only(made: Path) -> None:
    found = PreparedSet.open(made)
    with pytest.raises(ValueError, match="read-only"):
        found.images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        found.rows.label[0] = 0


def test_the_same_content_has_the_same_digest_and_bytes(tmp_path: Path) -> None:
    first, second = make_set(tmp_path / "a"), make_set(tmp_path / "b")
    assert first.digest == second.digest
    assert (tmp_path / "a/set.json").read_bytes() == (tmp_path / "b/set.json").read_bytes()
    assert make_set(tmp_path / "c", heldout=4).digest != first.digest


def test_images_can_be_read_by_plain_numpy(made: Path) -> None:
    assert np.load(made / "images.npy").shape == (20, 8, 8, 3)


def write_and_raise(path: Path, error: type[BaseException]) -> None:
    with Writer(path, name="T", size=8, source="") as out:
        add_rows(out, 0, 4, pixels(4))
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_while_writing_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_and_raise(tmp_path / "x/T", error)
    assert list((tmp_path / "x").iterdir()) == []


def test_a_set_without_images_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        refused("T", "images"),
        Writer(tmp_path / "T", name="T", size=8, source=""),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_existing_destination_is_left_alone(made: Path) -> None:
    before = sorted(made.iterdir())
    with refused("T", "exists"):
        Writer(made, name="T", size=8, source="")
    assert sorted(made.iterdir()) == before


def test_an_empty_directory_is_an_acceptable_destination(tmp_path: Path) -> None:
    (tmp_path / "T").mkdir()
    assert len(make_set(tmp_path / "T")) == 20


def write_while_another_writer_finishes(path: Path) -> None:
    with Writer(path, name="late", size=8, source="") as late:
        add_rows(late, 0, 4, pixels(4))
        make_set(path, name="early")


def test_the_first_of_two_writers_of_the_same_set_wins(tmp_path: Path) -> None:
    with refused("T", "process"):
        write_while_another_writer_finishes(tmp_path / "T")
    assert PreparedSet.open(tmp_path / "T", verify=True).name == "early"
    assert [path.name for path in tmp_path.iterdir()] == ["T"]


LIMITED_FILES = """
import resource, sys
from pathlib import Path
from fedvisage.data.writer import Writer
from fedvisage.base.errors import RunFailed
from tests.data.making import add_rows, pixels
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with Writer(Path(sys.argv[1]) / "T", name="T", size=64, source="") as out:
        for batch in range(4):
            add_rows(out, 4 * batch, 4, pixels(4, 64))
except RunFailed as error:
    print(error)
"""


def test_a_file_size_limit_is_named_and_leaves_no_half_written_set(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED_FILES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.startswith(f"{tmp_path / 'T'}: nothing was saved: the file would exceed the limit")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from fedvisage.data.writer import Writer
from tests.data.making import add_rows, pixels
with Writer(Path(sys.argv[1]), name="T", size=8, source="") as out:
    add_rows(out, 0, 4, pixels(4))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def write_and_be_killed(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_writer_left_is_removed_by_the_next_one_of_the_same_set(tmp_path: Path) -> None:
    for name in ("T", "T.b", "U"):
        write_and_be_killed(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 3
    make_set(tmp_path / "T")
    left = sorted(path.name.rsplit(".", 2)[0] for path in tmp_path.iterdir())
    assert left == [".T.b", ".U", "T"]


def test_what_a_living_writer_fills_is_left_alone(tmp_path: Path) -> None:
    with Writer(tmp_path / "T", name="slow", size=8, source="") as out:
        add_rows(out, 0, 4, pixels(4))
        with pytest.raises(RuntimeError):
            write_and_raise(tmp_path / "T", RuntimeError)
        add_rows(out, 4, 4, pixels(4))
    assert len(PreparedSet.open(tmp_path / "T", verify=True)) == 8


def row(**changes: object) -> dict[str, list[object]]:
    plain: dict[str, object] = {
        "label": 1,
        "species": "bonafide",
        "subject": "s",
        "video": "v",
        "frame": 0,
        "split": "train",
        "item": "i",
    }
    return {key: [value] for key, value in (plain | changes).items()}


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"label": 2}, "label"),
        ({"label": 0}, "species"),
        ({"species": "print"}, "species"),
        ({"label": 0, "species": "Print!"}, "Print!"),
        ({"split": "training"}, "training"),
        ({"frame": -1}, "frame"),
        ({"subject": ""}, "subject"),
        ({"video": "a\nb"}, "video"),
        ({"item": "x" * 256}, "item"),
        ({"item": "/etc/passwd"}, "/etc/passwd"),
        ({"item": "../up"}, "../up"),
        ({"item": "a/../../up"}, "a/../../up"),
        ({"item": "a\\b"}, r"a\\b"),
        ({"item": "C:/x"}, "C:/x"),
        ({"item": "a//b"}, "a//b"),
        ({"item": "first"}, "twice"),
        ({"split": "test", "subject": "first"}, "splits"),
        ({"subject": "first", "label": 0, "species": "print"}, "attacks"),
        ({"subject": "second"}, "subjects"),
    ],
)
def test_rows_that_break_a_rule_are_refused(tmp_path: Path, changes: dict[str, object], keyword: str) -> None:
    with Writer(tmp_path / "T", name="T", size=8, source="") as out:
        out.add(pixels(1), **row(item="first", subject="first"))  # type: ignore[arg-type]
        with refused("T", keyword):
            out.add(pixels(1), **row(**changes))  # type: ignore[arg-type]
    assert PreparedSet.open(tmp_path / "T").rows.item.tolist() == ["first"]


@pytest.mark.parametrize(
    "images",
    [pixels(1, 9), pixels(2), pixels(1).astype(np.float32), pixels(1)[..., :1]],
    ids=["size", "count", "type", "channels"],
)
def test_images_of_another_shape_or_type_are_refused(tmp_path: Path, images: np.ndarray) -> None:
    with (
        pytest.raises(ValueError, match=r"images\.npy: expected"),
        Writer(tmp_path / "T", name="T", size=8, source="") as out,
    ):
        out.add(images, **row())  # type: ignore[arg-type]


def rewrite(made: Path, name: str, content: bytes) -> None:
    """Replace a file and make set.json promise exactly that size, as a forger would."""
    (made / name).write_bytes(content)
    manifest = json.loads((made / "set.json").read_text())
    manifest["files"][name]["bytes"] = len(content)
    (made / "set.json").write_text(json.dumps(manifest))


def check_refused(prepared: Path, place: Path, keyword: str) -> None:
    """Expect that a set does not open, with an error at this place."""
    with refused(place, keyword):
        PreparedSet.open(prepared)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    check_refused(tmp_path / "none", tmp_path / "none", "directory")


def test_a_directory_that_is_no_prepared_set_is_named(tmp_path: Path) -> None:
    check_refused(tmp_path, tmp_path / "set.json", "fedvisage data import")


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("", "JSON"),
        ("[]", "object"),
        ("{" * 10_000, "JSON"),
        ('{"format": 2}', "required"),
        (None, "count"),
        ("x" * ((1 << 20) + 1), "1048576"),
    ],
)
def test_a_forged_set_json_is_refused(made: Path, text: str | None, keyword: str) -> None:
    if text is None:
        text = (made / "set.json").read_text().replace('"count": 20', '"count": -20')
    (made / "set.json").write_text(text)
    check_refused(made, made / "set.json", keyword)


def test_a_name_that_would_act_on_a_terminal_is_refused(made: Path) -> None:
    text = (made / "set.json").read_text().replace('"name": "T"', '"name": "\\u001b[2J"')
    (made / "set.json").write_text(text)
    check_refused(made, made / "set.json", "name")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x1bb", "\udcff"])
def test_a_name_that_cannot_be_shown_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with refused("name", "200"):
        Writer(tmp_path / "T", name=name, size=8, source="")
    assert list(tmp_path.iterdir()) == []


def test_points_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "T", name="T", size=8, source="", points=True) as out:
        out.add(pixels(1), points=np.zeros((1, 5, 2), np.float32), **row())  # type: ignore[arg-type]
    np.save(tmp_path / "other.npy", np.full((1, 5, 2), np.nan, np.float32))
    rewrite(tmp_path / "T", "points.npy", (tmp_path / "other.npy").read_bytes())
    check_refused(tmp_path / "T", tmp_path / "T" / "points.npy", "finite")


def test_a_file_name_that_leads_out_of_the_set_is_refused(made: Path) -> None:
    text = (made / "set.json").read_text().replace("images.npy", "../images.npy")
    (made / "set.json").write_text(text)
    check_refused(made, made / "set.json", "images.npy")


def test_a_truncated_file_is_refused(made: Path) -> None:
    whole = (made / "images.npy").read_bytes()
    (made / "images.npy").write_bytes(whole[:-1])
    check_refused(made, made / "images.npy", f"{len(whole) - 1} bytes")


def test_a_missing_file_is_refused(made: Path) -> None:
    (made / "rows.csv").unlink()
    check_refused(made, made / "rows.csv", "missing")


def test_a_link_out_of_the_set_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.move(made / "images.npy", tmp_path / "elsewhere.npy")
    (made / "images.npy").symlink_to(tmp_path / "elsewhere.npy")
    check_refused(made, made / "images.npy", "link")


def test_arrays_of_another_type_or_shape_are_refused(made: Path, tmp_path: Path) -> None:
    for array in (np.zeros((20, 8, 8, 3), np.float32), np.zeros((19, 8, 8, 3), np.uint8)):
        np.save(tmp_path / "other.npy", array)
        rewrite(made, "images.npy", (tmp_path / "other.npy").read_bytes())
        check_refused(made, made / "images.npy", "uint8 20×8×8×3")


def test_an_array_of_pickles_is_refused_without_being_loaded(made: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    rewrite(made, "images.npy", (tmp_path / "other.npy").read_bytes())
    check_refused(made, made / "images.npy", "array")


@pytest.mark.parametrize(
    "header", [b"", b"PK\x03\x04" + bytes(200), b"\x93NUMPY\x01\x00\x10\x00((((((((((((((((" + bytes(99)]
)
def test_a_forged_array_header_is_refused(made: Path, header: bytes) -> None:
    rewrite(made, "images.npy", header)
    check_refused(made, made / "images.npy", "array")


@pytest.mark.parametrize(
    ("old", "new", "keyword"),
    [
        ("item,label", "label,item", "first line"),
        ("train/000.png,1,bonafide", "train/000.png,0,bonafide", "species"),
        ("train/000.png,1,", "train/000.png,one,", "line 2"),
        ("train/000.png,1,", "../000.png,1,", "../000.png"),
        ("train/001.png,0,print,train-0,train-0-1,", "train/001.png,0,print,train-0,train-0-0,", "train-0-0"),
        ("train/000.png,1,bonafide,train-0,train-0-0,0,train\n", "", "19 rows"),
        ("train/000.png", '"train/000.png', "table"),
        ("train/000.png", "train/000.png\udcff", "utf-8"),
    ],
)
def test_forged_rows_are_refused(made: Path, old: str, new: str, keyword: str) -> None:
    text = (made / "rows.csv").read_text()
    assert old in text
    rewrite(made, "rows.csv", text.replace(old, new, 1).encode("utf-8", "surrogateescape"))
    check_refused(made, made / "rows.csv", keyword)


def test_a_changed_byte_is_found_when_digests_are_verified(made: Path) -> None:
    content = bytearray((made / "images.npy").read_bytes())
    content[-1] ^= 1
    (made / "images.npy").write_bytes(content)
    assert len(PreparedSet.open(made)) == 20
    with refused("images.npy", "SHA-256"):
        PreparedSet.open(made, verify=True)
