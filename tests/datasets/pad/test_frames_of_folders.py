"""Folders whose images are the frames of a video, and boxes that come with datasets."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.importers.files import picture, save
from tests.datasets.imports import import_attacks

from fedvisage.datasets.dataset import Entry, Grammar, Name
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.lists import Form, read_boxes, write_row
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.tree import walk

COLOUR = Grammar("{part}/{person}/{clip}/colour", part="real|fake", person="P[0-9]", clip="[a-z]+")
DEPTH = Grammar("{part}/{person}/{clip}/depth", part="real|fake", person="P[0-9]", clip="[a-z]+")


def _read(fields: Mapping[str, str], _: ImportOptions) -> Entry:
    return Entry("bonafide" if fields["part"] == "real" else "print", fields["person"], part=fields["part"])


SCANNER = Scanner(
    kind="frames-of",
    title="Frames",
    page="https://example.org",
    expects="",
    names=(Name(COLOUR, _read, "frames"), Name(DEPTH, lambda *_: "depth images", "frames")),
)


def make_folders(root: Path) -> Path:
    for number, clip in enumerate(("real/P1/a", "real/P2/b", "fake/P1/a")):
        for frame in range(6):
            save(root / clip / "colour" / f"{frame:04d}.png", picture(10 * number + frame))
            save(root / clip / "depth" / f"{frame:04d}.png", picture(1000 + 10 * number + frame))
    return root


def test_folder_is_one_item_and_subjects_differ_by_part(tmp_path: Path) -> None:
    listing = SCANNER.list(walk(make_folders(tmp_path / "f")), ImportOptions())
    assert [(item.name, item.kind, item.subject) for item in listing.items] == [
        ("fake/P1/a/colour", "frames", "frames-of/fake/P1"),
        ("real/P1/a/colour", "frames", "frames-of/real/P1"),
        ("real/P2/b/colour", "frames", "frames-of/real/P2"),
    ]
    assert listing.stray == {"depth images": 18}


def test_frames_are_equidistant_and_keep_their_names(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "f")
    (root / "real/P2/b/colour/0001.png").write_text("damaged")
    prepared, _ = import_attacks(SCANNER, root, tmp_path / "set", size=24, frames="2", crop="centre")
    names = ("0001.png", "0004.png")
    assert prepared.rows.item.tolist() == [
        *(f"fake/P1/a/colour/{name}" for name in names),
        *(f"real/P1/a/colour/{name}" for name in names),
        "real/P2/b/colour/0004.png",
    ]
    assert prepared.rows.frame.tolist() == [1, 4, 1, 4, 4]
    assert set(prepared.rows.video.tolist()) == {"fake/P1/a/colour", "real/P1/a/colour", "real/P2/b/colour"}
    assert (prepared.images[0] == picture(21)).all()


def test_folder_of_damaged_images_is_one_bad_file(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "f")
    for path in (root / "real/P2/b/colour").iterdir():
        path.write_text("damaged")
    _, report = import_attacks(SCANNER, root, tmp_path / "set", size=24, frames="2", max_bad=0.5, crop="centre")
    assert [(one.path, one.reason) for one in report.skipped] == [
        ("real/P2/b/colour", "no readable image in the folder")
    ]


def read(path: Path, text: str, form: Form) -> dict[int, list[float]]:
    path.write_text(text)
    return {frame: box.tolist() for frame, box in read_boxes(path, form).items()}


def test_sides_and_corners_give_the_same_box(tmp_path: Path) -> None:
    assert read(tmp_path / "a", "0 10 20 30 40\n1 11 20 30 40\r\n", "sides") == {
        0: [10, 20, 30, 40],
        1: [11, 20, 30, 40],
    }
    corners = "0,10,20,40,60,15,30,35,30\n"  # eyes behind the corners, as MSU-MFSD has them
    assert read(tmp_path / "b", corners, "corners") == {0: [10, 20, 30, 40]}


@pytest.mark.parametrize("row", ["5 0 0 0 0", "5 10 10 -3 4", "5 1 2 3", "five 1 2 3 4", "5 nan 1 20 20", ""])
@pytest.mark.parametrize("form", ["sides", "corners"])
def test_invalid_row_leaves_its_frame_without_a_box(row: str, form: Form, tmp_path: Path) -> None:
    assert read(tmp_path / "a", f"{row}\n6 1 2 30 40\n", form).keys() == {6}


def test_empty_file_has_no_boxes(tmp_path: Path) -> None:
    assert read(tmp_path / "a", "", "sides") == {}


@pytest.mark.parametrize("form", ["sides", "corners"])
def test_written_rows_are_read_back(form: Form, tmp_path: Path) -> None:
    text = write_row(3, np.array([4.0, 5.0, 60.0, 70.0]), form) + "\n"
    assert read(tmp_path / "a", text, form) == {3: [4, 5, 60, 70]}
