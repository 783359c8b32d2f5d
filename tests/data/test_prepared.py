"""Prepared sets: they are read as they were written, and forged or damaged ones are refused."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.small_sets import add_rows, columns_of, make_set, pixels
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    return make_set(tmp_path / "T").path


def test_batches_are_read_back(tmp_path: Path) -> None:
    images = pixels(10)
    depth = np.random.default_rng(1).integers(0, 256, (10, 32, 32), dtype=np.uint8)
    points = np.random.default_rng(2).random((10, 5, 2), dtype=np.float32)
    with Writer(tmp_path / "O", name="O", size=8, source="a test", depth=True, points=True) as out:
        for start, end in [(0, 3), (3, 3), (3, 10)]:
            n = end - start
            items = [f"v/{number}" for number in range(start, end)]
            columns = columns_of(
                n,
                label=np.ones(n, int),
                subject=['Ünï, "q"'] * n,
                video=["v"] * n,
                frame=np.arange(start, end),
                item=items,
            )
            out.add(images[start:end], depth=depth[start:end], points=points[start:end], **columns)
    reopened = PreparedSet.open(tmp_path / "O", verify=True)
    assert (reopened.name, reopened.size, reopened.source, len(reopened)) == ("O", 8, "a test", 10)
    assert reopened.depth is not None
    assert reopened.points is not None
    np.testing.assert_array_equal(reopened.images, images)
    np.testing.assert_array_equal(reopened.depth, depth)
    np.testing.assert_array_equal(reopened.points, points)
    assert reopened.rows.frame.tolist() == list(range(10))
    assert set(reopened.rows.subject) == {'Ünï, "q"'}
    assert reopened.rows.item.tolist() == [f"v/{i}" for i in range(10)]


def test_select_returns_the_indices_of_a_split(prepared: Path) -> None:
    reopened = PreparedSet.open(prepared)
    assert reopened.select("train").tolist() == list(range(12))
    assert reopened.select("heldout").tolist() == list(range(12, 20))
    assert reopened.select("test").tolist() == []
    assert reopened.select(None).tolist() == list(range(20))


def test_arrays_are_read_only(prepared: Path) -> None:
    reopened = PreparedSet.open(prepared)
    with pytest.raises(ValueError, match="read-only"):
        reopened.images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        reopened.rows.label[0] = 0


def test_the_same_content_has_the_same_digest_and_bytes(tmp_path: Path) -> None:
    first, second = make_set(tmp_path / "a"), make_set(tmp_path / "b")
    assert first.digest == second.digest
    assert (tmp_path / "a/set.json").read_bytes() == (tmp_path / "b/set.json").read_bytes()
    assert make_set(tmp_path / "c", heldout=4).digest != first.digest


def test_images_can_be_read_by_plain_numpy(prepared: Path) -> None:
    assert np.load(prepared / "images.npy").shape == (20, 8, 8, 3)


def write_and_raise(path: Path, error: type[BaseException]) -> None:
    with Writer(path, name="T", size=8, source="") as out:
        add_rows(out, 0, 4, pixels(4))
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_exception_while_writing_leaves_no_files(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_and_raise(tmp_path / "x/T", error)
    assert list((tmp_path / "x").iterdir()) == []


def test_set_without_images_is_refused(tmp_path: Path) -> None:
    with refused("T", "images"), Writer(tmp_path / "T", name="T", size=8, source=""):
        pass
    assert list(tmp_path.iterdir()) == []


def test_existing_destination_is_refused(prepared: Path) -> None:
    before = sorted(prepared.iterdir())
    with refused("T", "exists"):
        Writer(prepared, name="T", size=8, source="")
    assert sorted(prepared.iterdir()) == before


def test_empty_directory_is_a_valid_destination(tmp_path: Path) -> None:
    (tmp_path / "T").mkdir()
    assert len(make_set(tmp_path / "T")) == 20


def test_the_first_of_two_writers_of_the_same_set_wins(tmp_path: Path) -> None:
    with refused("T", "process"), Writer(tmp_path / "T", name="late", size=8, source="") as late:
        add_rows(late, 0, 4, pixels(4))
        make_set(tmp_path / "T", name="early")
    assert PreparedSet.open(tmp_path / "T", verify=True).name == "early"
    assert [path.name for path in tmp_path.iterdir()] == ["T"]


LIMITED_FILES = """
import resource, sys
from pathlib import Path
from fedvisage.data.writer import Writer
from fedvisage.base.errors import RunFailed
from tests.data.small_sets import add_rows, pixels
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with Writer(Path(sys.argv[1]) / "T", name="T", size=64, source="") as out:
        for batch in range(4):
            add_rows(out, 4 * batch, 4, pixels(4, 64))
except RunFailed as error:
    print(error)
"""


def test_file_size_limit_is_reported_and_leaves_no_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED_FILES, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.startswith(f"{tmp_path / 'T'}: nothing was saved: the file would exceed the limit")
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from fedvisage.data.writer import Writer
from tests.data.small_sets import add_rows, pixels
with Writer(Path(sys.argv[1]), name="T", size=8, source="") as out:
    add_rows(out, 0, 4, pixels(4))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_next_writer_removes_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    for name in ("T", "T.b", "U"):
        process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
        assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3
    make_set(tmp_path / "T")
    remaining = sorted(path.name.rsplit(".", 2)[0] for path in tmp_path.iterdir())
    assert remaining == [".T.b", ".U", "T"]


def test_directory_of_a_living_writer_is_kept(tmp_path: Path) -> None:
    with Writer(tmp_path / "T", name="slow", size=8, source="") as out:
        add_rows(out, 0, 4, pixels(4))
        with pytest.raises(RuntimeError):
            write_and_raise(tmp_path / "T", RuntimeError)
        add_rows(out, 4, 4, pixels(4))
    assert len(PreparedSet.open(tmp_path / "T", verify=True)) == 8


def row(**changes: object) -> dict[str, Any]:
    values = {"subject": "s", "video": "v", "item": "i"} | changes
    return columns_of(1, **{name: [value] for name, value in values.items()})


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"label": 2}, "label"),
        ({"label": 0}, "species"),
        ({"label": 1, "species": "print"}, "species"),
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
        out.add(pixels(1), **row(item="first", subject="first"))
        with refused("T", keyword):
            out.add(pixels(1), **row(**changes))
    assert PreparedSet.open(tmp_path / "T").rows.item.tolist() == ["first"]


@pytest.mark.parametrize(
    "images",
    [pixels(1, 9), pixels(1)[0], pixels(1).astype(np.float32), pixels(1)[..., :1]],
    ids=["size", "no batch", "type", "channels"],
)
def test_images_of_another_shape_or_type_are_refused(tmp_path: Path, images: np.ndarray) -> None:
    with refused("T", "images.npy", "expected"), Writer(tmp_path / "T", name="T", size=8, source="") as out:
        out.add(images, **row())


@pytest.mark.parametrize(
    ("label", "keyword"), [([1], "one value per image"), (1, "one value per image"), (["live"] * 2, "whole numbers")]
)
def test_labels_that_are_not_one_number_per_image_are_refused(label: Any, keyword: str, tmp_path: Path) -> None:
    columns = columns_of(2, video=["v"] * 2, subject=["s"] * 2, item=["i", "j"]) | {"label": label}
    with refused("T", "label", keyword), Writer(tmp_path / "T", name="T", size=8, source="") as out:
        out.add(pixels(2), **columns)


def rewrite(prepared: Path, name: str, content: bytes) -> None:
    """Replace a file and make set.json promise exactly that size, as a forger would."""
    (prepared / name).write_bytes(content)
    manifest = json.loads((prepared / "set.json").read_text())
    manifest["files"][name]["bytes"] = len(content)
    (prepared / "set.json").write_text(json.dumps(manifest))


def check_refused(prepared: Path, place: Path, keyword: str) -> None:
    """Expect that a set does not open, with an error at this place."""
    with refused(place, keyword):
        PreparedSet.open(prepared)


def test_missing_set_is_refused(tmp_path: Path) -> None:
    check_refused(tmp_path / "none", tmp_path / "none", "directory")
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
def test_forged_set_json_is_refused(prepared: Path, text: str | None, keyword: str) -> None:
    if text is None:
        text = (prepared / "set.json").read_text().replace('"count": 20', '"count": -20')
    (prepared / "set.json").write_text(text)
    check_refused(prepared, prepared / "set.json", keyword)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x1bb", "\udcff"])
def test_unprintable_name_is_refused_before_writing(tmp_path: Path, name: str) -> None:
    with refused("name", "200"):
        Writer(tmp_path / "T", name=name, size=8, source="")
    assert list(tmp_path.iterdir()) == []


def test_points_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "T", name="T", size=8, source="", points=True) as out:
        out.add(pixels(1), points=np.zeros((1, 5, 2), np.float32), **row())
    np.save(tmp_path / "other.npy", np.full((1, 5, 2), np.nan, np.float32))
    rewrite(tmp_path / "T", "points.npy", (tmp_path / "other.npy").read_bytes())
    check_refused(tmp_path / "T", tmp_path / "T" / "points.npy", "finite")


@pytest.mark.parametrize(
    ("old", "new", "keyword"),
    [('"name": "T"', '"name": "\\u001b[2J"', "name"), ("images.npy", "../images.npy", "images.npy")],
)
def test_names_that_act_on_a_terminal_or_lead_out_of_the_set_are_refused(
    prepared: Path, old: str, new: str, keyword: str
) -> None:
    (prepared / "set.json").write_text((prepared / "set.json").read_text().replace(old, new))
    check_refused(prepared, prepared / "set.json", keyword)


def test_truncated_file_is_refused(prepared: Path) -> None:
    whole = (prepared / "images.npy").read_bytes()
    (prepared / "images.npy").write_bytes(whole[:-1])
    check_refused(prepared, prepared / "images.npy", f"{len(whole) - 1} bytes")


def test_missing_file_is_refused(prepared: Path) -> None:
    (prepared / "rows.csv").unlink()
    check_refused(prepared, prepared / "rows.csv", "missing")


def test_link_out_of_the_set_is_refused(prepared: Path, tmp_path: Path) -> None:
    shutil.move(prepared / "images.npy", tmp_path / "elsewhere.npy")
    (prepared / "images.npy").symlink_to(tmp_path / "elsewhere.npy")
    check_refused(prepared, prepared / "images.npy", "link")


def test_arrays_of_another_type_or_shape_are_refused(prepared: Path, tmp_path: Path) -> None:
    for array in (np.zeros((20, 8, 8, 3), np.float32), np.zeros((19, 8, 8, 3), np.uint8)):
        np.save(tmp_path / "other.npy", array)
        rewrite(prepared, "images.npy", (tmp_path / "other.npy").read_bytes())
        check_refused(prepared, prepared / "images.npy", "uint8 20×8×8×3")


def test_array_of_pickles_is_refused_unread(prepared: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    rewrite(prepared, "images.npy", (tmp_path / "other.npy").read_bytes())
    check_refused(prepared, prepared / "images.npy", "array")


@pytest.mark.parametrize(
    "header", [b"", b"PK\x03\x04" + bytes(200), b"\x93NUMPY\x01\x00\x10\x00((((((((((((((((" + bytes(99)]
)
def test_forged_array_header_is_refused(prepared: Path, header: bytes) -> None:
    rewrite(prepared, "images.npy", header)
    check_refused(prepared, prepared / "images.npy", "array")


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
def test_forged_rows_are_refused(prepared: Path, old: str, new: str, keyword: str) -> None:
    text = (prepared / "rows.csv").read_text()
    assert old in text
    rewrite(prepared, "rows.csv", text.replace(old, new, 1).encode("utf-8", "surrogateescape"))
    check_refused(prepared, prepared / "rows.csv", keyword)


def test_verification_detects_a_changed_byte(prepared: Path) -> None:
    content = bytearray((prepared / "images.npy").read_bytes())
    content[-1] ^= 1
    (prepared / "images.npy").write_bytes(content)
    assert len(PreparedSet.open(prepared)) == 20
    with refused("images.npy", "SHA-256"):
        PreparedSet.open(prepared, verify=True)
