"""Photographs in one file: RecordIO and pickled pairs, written by hand, and damaged or malicious files."""

import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.checkpoints import MakesDirectory
from tests.datasets.imports import import_photographs, list_photographs
from tests.refusals import refused

from fedvisage.data.lists import read_pairs
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.people.bin import read_pickle, write_pickle
from fedvisage.datasets.people.recordio import MAGIC, Record, read_records, write_record

GOLDEN = bytes.fromhex(
    "0a23d7ce20000000020000000000000000000000000000000000000000000000000080400000c040"
    "0a23d7ce1d0000000000000000000000010000000000000000000000000000004a50473178000000"
    "0a23d7ce1e0000000000000000000000020000000000000000000000000000004a50473278780000"
    "0a23d7ce1c000000000000000000803f030000000000000000000000000000004a504733"
    "0a23d7ce200000000200000000000000040000000000000000000000000000000000803f00004040"
    "0a23d7ce20000000020000000000803f050000000000000000000000000000000000404000008040"
)
"""Two people with two pictures and one, as the format's description has it."""
INDEX = "0\t0\n1\t40\n2\t80\n3\t120\n4\t156\n5\t196\n"


def write_rec(root: Path, content: bytes, index: str | None = INDEX) -> Path:
    root.mkdir()
    (root / "train.rec").write_bytes(content)
    if index is not None:
        (root / "train.idx").write_text(index)
    return root


def png(path: Path, value: int) -> bytes:
    Image.fromarray(np.full((112, 112, 3), value, np.uint8)).save(path)
    return path.read_bytes()


def test_the_golden_file_has_two_people_and_three_pictures(tmp_path: Path) -> None:
    for index in (INDEX, None):
        listing = list_photographs("rec", write_rec(tmp_path / f"faces{index is None}", GOLDEN, index))
        folder = f"faces{index is None}"
        assert listing.counts == {f"{folder}/0000000": 2, f"{folder}/0000001": 1}
        assert [one.content.read() for one in listing.photographs(f"{folder}/0000000")] == [b"JPG1x", b"JPG2xx"]
        assert [(one.name, one.content.read()) for one in listing.photographs(f"{folder}/0000001")] == [
            ("0000001/00000003", b"JPG3")
        ]


def test_records_with_the_magic_number_are_split_and_joined(tmp_path: Path) -> None:
    assert write_record(2, (4, 6), 0) == GOLDEN[:40]
    assert write_record(0, (1,), 3, b"JPG3") == GOLDEN[120:156]
    magic = struct.pack("<I", MAGIC)
    contents = [b"ab" + magic, magic + magic + b"abc", b"abcd" + magic + b"efgh" + magic]
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(write_record(1, (5,), 1, one) for one in contents))
    table = read_records(path)
    assert [Record(path, offset).read() for offset in table.offsets] == contents
    assert table.labels.tolist() == [5.0] * 3


@pytest.mark.parametrize(
    ("content", "index", "place", "keyword"),
    [
        (GOLDEN[:-5], INDEX, "train.rec", "32 bytes"),
        (GOLDEN[:41], INDEX, "train.rec", "record 1"),
        (GOLDEN[:196], "0\t0\n1\t40\n2\t80\n3\t120\n4\t156\n", "train.rec", "3 pictures"),
        (GOLDEN, INDEX.replace("80", "84"), "train.idx", "byte 84"),
        (GOLDEN, INDEX.replace("5\t", "4\t"), "train.idx", "twice"),
        (GOLDEN, INDEX + "x\n", "train.idx, line 7", "key"),
        (b"\0" * 40, None, "train.rec", "magic number"),
        (b"", None, "train.rec", "empty"),
        (struct.pack("<II", MAGIC, (1 << 29) - 1) + b"\0" * 30, None, "train.rec", "536,870,911"),
        (struct.pack("<II", MAGIC, 3 << 29) + b"\0" * 30, None, "train.rec", "another record"),
        (struct.pack("<IIIfQQ", MAGIC, 24, 2**31, 0, 0, 0), None, "train.rec", "2,147,483,648 labels"),
        (struct.pack("<IIIfQQ", MAGIC, 24, 0, float("nan"), 0, 0), None, "train.rec", "NaN"),
        (GOLDEN[:124] + GOLDEN[124:128] + struct.pack("<If", 0, 0.5) + GOLDEN[136:], INDEX, "train.rec", "0.5"),
        (GOLDEN[:188] + struct.pack("<ff", 1, 4) + GOLDEN[196:], INDEX, "train.rec", "record 4"),
    ],
)
def test_truncated_or_contradicting_files_are_refused(
    content: bytes, index: str | None, place: str, keyword: str, tmp_path: Path
) -> None:
    with refused(f"f/{place}", keyword):
        import_photographs("rec", write_rec(tmp_path / "f", content, index), tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_pictures_are_unchanged_and_negative_labels_left_out(tmp_path: Path) -> None:
    """Records of im2rec: the first is a picture, and labels may be negative."""
    labels = (7, 3, -1, 7)
    records = [write_record(0, (one,), 0, png(tmp_path / "p.png", 10 * at)) for at, one in enumerate(labels)]
    source = write_rec(tmp_path / "web", b"".join(records), None)
    (source / "property").write_text("3,112,112\n")
    report = import_photographs("rec", source, tmp_path / "set", heldout=0)
    prepared = PreparedSet.open(tmp_path / "set", verify=True)
    assert [*zip(prepared.rows.subject.tolist(), prepared.images[:, 0, 0, 0].tolist(), strict=True)] == [
        ("web/0000003", 10),
        ("web/0000007", 0),
        ("web/0000007", 30),
    ]
    assert prepared.crop is not None
    assert (prepared.crop.how, prepared.crop.alignment) == ("whole", "points")
    text = "\n".join(report.lines())
    assert "1 images without a person" in text
    assert "2 of 3 people" in text


def test_outward_link_and_damaged_pictures_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out.rec").write_bytes(GOLDEN)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "train.rec").symlink_to(tmp_path / "out.rec")
    with refused("links/train.rec", "link"):
        import_photographs("rec", tmp_path / "links", tmp_path / "set")
    with refused("f", "3 files", "0000000/00000001"):
        import_photographs("rec", write_rec(tmp_path / "f", GOLDEN), tmp_path / "set")
    (tmp_path / "links" / "train.rec").unlink()
    with refused("links", "train.rec"):
        import_photographs("rec", tmp_path / "links", tmp_path / "set")


PICTURES = [b"first \x80\xff\0", b"second", b"x" * 300, b"second"]
PYTHON_2 = b"\x80\x02]q\x01(T\x05\x00\x00\x00ab\xff\x00cq\x02U\x02deq\x03e]q\x04\x88a\x86q\x05."
"""As Python 2 writes it: long and short strings, and a list of one."""


def write_file(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "lfw.bin").write_bytes(content)
    return tmp_path / "lfw.bin"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", ["bytes", "array", "column"])
def test_every_protocol_and_form_of_a_picture_is_read(protocol: int, form: str, tmp_path: Path) -> None:
    rows = [np.frombuffer(one, np.uint8).copy() for one in PICTURES]
    pictures: list[Any] = PICTURES if form == "bytes" else [one[:, None] if form == "column" else one for one in rows]
    for same in ([True, False], [np.True_, np.False_], [1, 0]):
        portions, alike = read_pickle(write_file(tmp_path, pickle.dumps((pictures, same), protocol)))
        assert [one.read() for one in portions] == PICTURES
        assert alike == [True, False]


def test_python_2_pickles_are_read_and_written(tmp_path: Path) -> None:
    portions, same = read_pickle(write_file(tmp_path, PYTHON_2))
    assert [one.read() for one in portions] == [b"ab\xff\0c", b"de"]
    assert same == [True]
    assert pickle.loads(write_pickle(PICTURES, [True, False]), encoding="bytes") == (PICTURES, [True, False])


@pytest.mark.parametrize("protocol", [2, 4])
def test_malicious_pickle_is_refused_without_effect(protocol: int, tmp_path: Path) -> None:
    path = write_file(tmp_path, pickle.dumps(([b"a", MakesDirectory(tmp_path / "done")], [True]), protocol))
    with refused("lfw.bin", f"{os.mkdir.__module__}.mkdir"):
        import_photographs("bin", path, tmp_path / "set")
    assert [one.name for one in tmp_path.iterdir()] == ["lfw.bin"]


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (PYTHON_2[:-1], "cut off"),
        (PYTHON_2[:12], "byte 11"),
        (PYTHON_2 + b"x", "end"),
        (b"\x80\x02](T\xff\xff\xff\x7fabc", "2,147,483,647 bytes"),
        (b"\x80\x02](T\xff\xff\xff\xffabc", "-1 bytes"),
        (b"(lp0\nS'a'\np1\na.", "protocol"),
        (b"\x80\x02}.", "b'}'"),
        (b"\x80\x02cposix\nsystem\nU\x02ls\x85R.", "posix.system"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0utf-8\x86R.", "encoding"),
        (b"\x80\x02h\x05.", "stored"),
        (b"\x80\x02a.", "value"),
        (b"\x80\x02]e.", "mark"),
        (b"\x80\x02]q\0h\0a]\x86.", "not bytes"),
        (b"\x80\x02](NNe]\x88a\x86.", "not bytes"),
        (b"\x80\x02](U\1aU\1be]K\x02a\x86.", "true"),
        (b"\x80\x02](U\1aU\1be.", "lists"),
        (b"\x80\x02](U\1ae]\x88a\x86.", "1 pairs"),
        (b"\x80\x02](" + b"\x88" * (1 << 22) + b"e.", "2,097,152"),
        (b"\x80\x02" + b"(" * (1 << 22), "2,097,152"),
        (b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", key) for key in range((1 << 21) + 1)), "2,097,152"),
        (pickle.dumps(([np.zeros((4, 4), np.uint8)] * 2, [True])), "array"),
        (pickle.dumps(([np.zeros(4, np.float32)] * 2, [True])), "array"),
        (b"", "cut off"),
    ],
)
def test_other_pickles_are_refused(content: bytes, keyword: str, tmp_path: Path) -> None:
    with refused("lfw.bin", keyword):
        import_photographs("bin", write_file(tmp_path, content), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_pictures_of_absurd_size_are_refused_undecoded(tmp_path: Path) -> None:
    """A picture of 400 million pixels in a few bytes: only its header is read."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with refused("lfw.bin", "pair000000/pair000000_0001", "64 million"):
        content = write_pickle([bomb, bomb], [True])
        import_photographs("bin", write_file(tmp_path, content), tmp_path / "set")
    assert [one.name for one in tmp_path.iterdir()] == ["lfw.bin"]


def test_bin_import_writes_a_set_and_ten_folds_of_pairs(tmp_path: Path) -> None:
    pictures = [png(tmp_path / "p.png", value) for value in range(40)]
    same = [number % 3 == 0 for number in range(20)]
    path = write_file(tmp_path, write_pickle(pictures, same))
    report = import_photographs("bin", path, tmp_path / "set")
    prepared, listed = PreparedSet.open(tmp_path / "set"), read_pairs(tmp_path / "set-pairs.txt")
    assert listed.same.tolist() == same
    assert listed.fold.tolist() == [number // 2 for number in range(20)]
    values = dict(zip(prepared.rows.item.tolist(), prepared.images[:, 0, 0, 0].tolist(), strict=True))
    assert [values[one] for one in listed.first] == list(range(0, 40, 2))
    assert [values[one] for one in listed.second] == list(range(1, 40, 2))
    assert "heldout" not in prepared.rows.split
    assert "only known within pairs" in "\n".join(report.lines())
    with refused("set-pairs.txt", "exists"):
        import_photographs("bin", path, tmp_path / "set")
