"""RecordIO files: the format by hand, pictures by label, and files that are cut off or lie."""

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import LAYOUTS
from fedvisage.datasets.import_people import import_people
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.recordio import MAGIC, Record, read_records, write_record

REC = LAYOUTS["rec"]
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


def lay(root: Path, content: bytes, index: str | None = INDEX) -> Path:
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
        album = REC.scan(REC, lay(tmp_path / f"faces{index is None}", GOLDEN, index))
        whose = f"faces{index is None}"
        assert album.counts == {f"{whose}/0000000": 2, f"{whose}/0000001": 1}
        assert [one.content.read() for one in album.photographs(f"{whose}/0000000")] == [b"JPG1x", b"JPG2xx"]
        assert [(one.name, one.content.read()) for one in album.photographs(f"{whose}/0000001")] == [
            ("0000001/00000003", b"JPG3")
        ]


def test_records_are_written_as_they_are_read_also_around_the_magic_number(tmp_path: Path) -> None:
    assert write_record(2, (4, 6), 0) == GOLDEN[:40]
    assert write_record(0, (1,), 3, b"JPG3") == GOLDEN[120:156]
    magic = struct.pack("<I", MAGIC)
    contents = [b"ab" + magic, magic + magic + b"abc", b"abcd" + magic + b"efgh" + magic]
    path = tmp_path / "a.rec"
    path.write_bytes(b"".join(write_record(1, (5,), 1, one) for one in contents))
    found = read_records(path)
    assert [Record(path, offset).read() for offset in found.offsets] == contents
    assert found.labels.tolist() == [5.0] * 3


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
def test_files_that_are_cut_off_or_lie_are_refused_and_nothing_is_written(
    content: bytes, index: str | None, place: str, keyword: str, tmp_path: Path
) -> None:
    with refused(f"f/{place}", keyword):
        import_people(REC, lay(tmp_path / "f", content, index), tmp_path / "set", ImportOptions(size=112), name="R")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_pictures_are_taken_as_they_were_aligned_and_nobody_who_has_no_label(tmp_path: Path) -> None:
    """Records of im2rec: the first is a picture, and labels may be negative."""
    labels = (7, 3, -1, 7)
    records = [write_record(0, (one,), 0, png(tmp_path / "p.png", 10 * at)) for at, one in enumerate(labels)]
    source = lay(tmp_path / "web", b"".join(records), None)
    (source / "property").write_text("3,112,112\n")
    report = import_people(REC, source, tmp_path / "set", ImportOptions(size=112, heldout=0), name="R")
    made = PreparedSet.open(tmp_path / "set", verify=True)
    assert [*zip(made.rows.subject.tolist(), made.images[:, 0, 0, 0].tolist(), strict=True)] == [
        ("web/0000003", 10),
        ("web/0000007", 0),
        ("web/0000007", 30),
    ]
    assert made.crop is not None
    assert (made.crop.how, made.crop.alignment) == ("whole", "points")
    said = "\n".join(report.lines())
    assert "1 images without a person" in said
    assert "2 of 3 people" in said


def test_a_link_out_of_the_folder_is_refused_and_a_picture_that_is_none_is_counted(tmp_path: Path) -> None:
    (tmp_path / "out.rec").write_bytes(GOLDEN)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "train.rec").symlink_to(tmp_path / "out.rec")
    with refused("links/train.rec", "link"):
        import_people(REC, tmp_path / "links", tmp_path / "set", ImportOptions(size=112), name="R")
    with refused("f", "3 files", "0000000/00000001"):
        import_people(REC, lay(tmp_path / "f", GOLDEN), tmp_path / "set", ImportOptions(size=112), name="R")
    (tmp_path / "links" / "train.rec").unlink()
    with refused("links", "train.rec"):
        import_people(REC, tmp_path / "links", tmp_path / "set", ImportOptions(size=112), name="R")
