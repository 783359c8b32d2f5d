"""The lists of FedGPAD: classes by the names of lists, species and persons by paths, depth maps at shorter paths."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.importers.files import picture, save
from tests.datasets.imports import import_attacks
from tests.datasets.pad.copies import copy_to, list_items
from tests.refusals import refused

from fedvisage.datasets.options import ImportOptions


def test_frames_of_one_folder_are_frames_of_one_video(copies: Mapping[str, Path]) -> None:
    listing = [(item.video, item.frame) for item in list_items("fedgpad", copies["fedgpad"]).items]
    assert listing[2:4] == [("train_release/1/1", 0), ("train_release/1/1", 1)]


@pytest.mark.parametrize(
    ("line", "at", "keyword"),
    [
        ("train_release/1/1/crop/100.png 0", "line 4", "bona fide"),
        ("train_release/1/3/crop/100.png 1", "line 3", "label"),
        ("train_release/1/3/crop/100.png", "line 3", "number"),
    ],
)
def test_contradicting_lists_are_refused(
    line: str, at: str, keyword: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    root = copy_to(copies["fedgpad"], tmp_path / "copy")
    with (root / "CASIA/image_list_fake.txt").open("a") as file:
        file.write(("\n" if at == "line 4" else "") + line + "\n")
    with refused("CASIA/image_list_fake.txt", at, keyword):
        list_items("fedgpad", root)


def test_path_of_the_other_class_is_refused(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = copy_to(copies["fedgpad"], tmp_path / "copy")
    save(root / "CASIA/train_release/2/HR_4/1.png", picture(1))
    with (root / "CASIA/image_list_real.txt").open("a") as file:
        file.write("train_release/2/HR_4/1.png 1\n")
    with refused("copy", "train_release/2/HR_4/1.png", "attack"):
        list_items("fedgpad", root)


def test_unknown_folder_name_requires_the_dataset(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = copy_to(copies["fedgpad"] / "CASIA", tmp_path / "mine")
    with refused("mine", "HKBUMARsV2", "--of"):
        list_items("fedgpad", root)
    listing = list_items("fedgpad", root, ImportOptions(of="casia-fasd"))
    assert [item.name for item in listing.items] == [
        item.name for item in list_items("fedgpad", copies["fedgpad"]).items
    ]


def test_two_datasets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("CASIA", "MSU"):
        save(tmp_path / name / "a/1.png", picture(1))
        (tmp_path / name / "image_list_real.txt").write_text("a/1.png 1\n")
    with refused(tmp_path, "CASIA", "MSU"):
        list_items("fedgpad", tmp_path)


def test_unknown_path_is_its_own_subject_and_missing_file_is_skipped(
    tmp_path: Path,
) -> None:
    root = tmp_path / "idiap"
    save(root / "a/b/1.png", picture(1))
    save(root / "a/b/2.png", picture(2))
    (root / "image_list_real.txt").write_text("a/b/1.png 0\na/b/9.png 0\n")
    (root / "image_list_fake.txt").write_text("a/b/2.png 1\n")
    listing = list_items("fedgpad", root)
    assert [(item.species, item.subject, item.own_subject) for item in listing.items] == [
        ("bonafide", "replay-attack/a/b", True),
        ("attack", "replay-attack/a/b", True),
    ]
    assert [one.path for one in listing.skipped] == ["a/b/9.png"]


def test_depth_map_has_the_full_path_or_its_first_folders(tmp_path: Path) -> None:
    root = tmp_path / "OULU"
    names = [f"Train_files/1_1_0{n}_1/7.png" for n in (1, 2)]
    for number, name in enumerate(names):
        save(root / name, picture(number))
    save(root / "Train_files/1_1_01_2/8.png", picture(9))
    (root / "image_list_real.txt").write_text("".join(f"{name} 1\n" for name in names))
    (root / "image_list_fake.txt").write_text("Train_files/1_1_01_2/8.png 0\n")
    save(root / "depth/Train_files/1_1_01_1/7_depth.png", np.full((24, 24, 3), 80, np.uint8))
    save(root / "depth/Train_files/7_depth.png", np.full((24, 24, 3), 160, np.uint8))
    prepared, _ = import_attacks(
        "fedgpad", root, tmp_path / "set", size=24, crop="none", depth=str(root / "depth"), frames="4"
    )
    assert {*prepared.rows.further} == {"official", "phone", "session", "file"}
    assert prepared.depth is not None
    values = {item: int(prepared.depth[row].max()) for row, item in enumerate(prepared.rows.item.tolist())}
    assert values == {names[0]: 80, names[1]: 160, "Train_files/1_1_01_2/8.png": 0}
