"""RecordIO files: the format by hand, pictures by label, and truncated or contradicting files."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.datasets.imports import import_photographs, list_photographs
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
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
