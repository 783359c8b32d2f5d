"""CelebA-Spoof: the 44 numbers beside the folders, and boxes in units of an image of 224 pixels."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.imports import copy_to, import_attacks, list_items
from tests.refusals import refused

from fedvisage.datasets.pad.lists import in_pixels, read_boxes

META = "metas/intra_test/train_label.json"
LIVE = "Data/train/10/live/000184.png"


@pytest.fixture
def root(copies: Mapping[str, Path], tmp_path: Path) -> Path:
    return copy_to(copies["celeba-spoof"], tmp_path / "copy")


def write(root: Path, last: list[object]) -> None:
    metas = json.loads((root / META).read_text())
    metas[LIVE] = [0] * 40 + last
    (root / META).write_text(json.dumps(metas))


@pytest.mark.parametrize("last", [[1, 1, 1, 1], [0, 0, 0, 1], [9, 1, 1, 0]])
def test_metadata_that_contradict_the_folder_are_refused(last: list[object], root: Path) -> None:
    write(root, last)
    with refused("metas/intra_test/train_label.json", "Data/train/10/live/000184.png", "bona fide"):
        list_items("celeba-spoof", root)


@pytest.mark.parametrize(
    "last", [[0, 0, 0], [11, 0, 0, 1], [0, 5, 0, 0], [0, 0, -1, 0], [0, 0, 0, "0"], [0, 0, 0, 0, 0]]
)
def test_invalid_metadata_names_the_image(last: list[object], root: Path) -> None:
    write(root, last)
    with refused("metas/intra_test/train_label.json", "Data/train/10/live/000184.png", "44"):
        list_items("celeba-spoof", root)


def test_missing_metadata_are_noted(root: Path) -> None:
    for path in root.glob("metas/intra_test/*.json"):
        path.unlink()
    listing = list_items("celeba-spoof", root)
    assert [item.species for item in listing.items] == ["bonafide", "attack"] * 3
    assert any("3 attacks have the species attack" in note for note in listing.notes)
    assert any("train: 4 of 494,405 images; test: 2 of 67,170" in note for note in listing.notes)


def test_image_in_both_lists_of_a_protocol_is_refused(root: Path) -> None:
    """The same holds for an image to which a protocol's list gives another class."""
    name = "metas/protocol2/test_on_low_quality_device/test_label.json"
    listed_there = json.loads((root / name).read_text())
    (root / name).write_text(json.dumps({**listed_there, LIVE: [0] * 44}))
    with refused("protocol2/test_on_low_quality_device/test_label.json", "Data/train/10/live/000184", "list"):
        list_items("celeba-spoof", root)
    (root / name).write_text(json.dumps({**listed_there, LIVE: [0] * 40 + [3, 0, 0, 1]}))
    with refused("protocol2/test_on_low_quality_device/test_label.json", "bona fide"):
        list_items("celeba-spoof", root)


def boxes(tmp_path: Path, text: str) -> list[float] | None:
    """Return the box that such a file gives in an image of 448×112 pixels."""
    (tmp_path / "1_BB.txt").write_text(text)
    box = read_boxes(tmp_path / "1_BB.txt", "scaled").get(0)
    inside = None if box is None else in_pixels(box, "scaled", 448, 112)
    return None if inside is None else inside.tolist()


def test_scaled_boxes_refer_to_224_pixels(tmp_path: Path) -> None:
    assert boxes(tmp_path, "10 20 100 60 0.98") == [20, 10, 200, 30]
    assert boxes(tmp_path, "-10 200 100 60 0.98\n") == [0, 100, 180, 12]  # cut at the edges


@pytest.mark.parametrize("text", ["", "0 0 0 0 0", "10 10 -5 20 0.9", "230 10 40 40 0.9", "-90 10 80 80 0.9", "x"])
def test_unusable_box_is_ignored(text: str, tmp_path: Path) -> None:
    assert boxes(tmp_path, text) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_unusable_boxes_are_replaced_by_the_detector(root: Path, tmp_path: Path) -> None:
    (root / "Data/train/10/live/000184_BB.txt").write_text("")
    (root / "Data/train/11/live/000021_BB.txt").write_text("300 300 40 40 0.9\n")
    for path in root.glob("Data/*/*/spoof"):
        for file in path.iterdir():
            file.unlink()
    _, report = import_attacks(
        "celeba-spoof", root, tmp_path / "set", size=32, crop="face", boxes="dataset", max_bad=1.0, frames="4"
    )
    assert (report.images, report.without_box) == (3, 2)


def test_archive_in_parts_is_reported(tmp_path: Path) -> None:
    (tmp_path / "CelebA_Spoof.zip.001").write_bytes(np.zeros(10, np.uint8).tobytes())
    with refused(tmp_path, "CelebA_Spoof.zip.001", "archive"):
        list_items("celeba-spoof", tmp_path)
