"""The lists of FedGPAD: classes by the names of lists, species and persons by paths, depth maps at shorter paths."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.importers.making import picture, save
from tests.datasets.pad.copies import changeable, listed
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions


def test_frames_of_one_folder_are_frames_of_one_video(copies: Mapping[str, Path]) -> None:
    found = [(item.video, item.frame) for item in listed("fedgpad", copies["fedgpad"]).items]
    assert found[2:4] == [("train_release/1/1", 0), ("train_release/1/1", 1)]


@pytest.mark.parametrize(
    ("line", "at", "keyword"),
    [
        ("train_release/1/1/crop/100.png 0", "line 4", "bona fide"),
        ("train_release/1/3/crop/100.png 1", "line 3", "label"),
        ("train_release/1/3/crop/100.png", "line 3", "number"),
    ],
)
def test_a_list_that_contradicts_another_is_an_error(
    line: str, at: str, keyword: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    root = changeable(copies["fedgpad"], tmp_path / "copy")
    with (root / "CASIA/image_list_fake.txt").open("a") as file:
        file.write(("\n" if at == "line 4" else "") + line + "\n")
    with refused("CASIA/image_list_fake.txt", at, keyword):
        listed("fedgpad", root)


def test_a_path_that_is_of_the_other_class_by_its_name_is_an_error(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = changeable(copies["fedgpad"], tmp_path / "copy")
    save(root / "CASIA/train_release/2/HR_4/1.png", picture(1))
    with (root / "CASIA/image_list_real.txt").open("a") as file:
        file.write("train_release/2/HR_4/1.png 1\n")
    with refused("copy", "train_release/2/HR_4/1.png", "attack"):
        listed("fedgpad", root)


def test_another_name_of_the_folder_asks_for_the_dataset(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = changeable(copies["fedgpad"] / "CASIA", tmp_path / "mine")
    with refused("mine", "HKBUMARsV2", "--of"):
        listed("fedgpad", root)
    found = listed("fedgpad", root, ImportOptions(of="casia-fasd"))
    assert [item.name for item in found.items] == [item.name for item in listed("fedgpad", copies["fedgpad"]).items]


def test_two_datasets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("CASIA", "MSU"):
        save(tmp_path / name / "a/1.png", picture(1))
        (tmp_path / name / "image_list_real.txt").write_text("a/1.png 1\n")
    with refused(tmp_path, "CASIA", "MSU"):
        listed("fedgpad", tmp_path)


def test_a_path_that_says_nothing_is_a_person_of_its_own_and_a_file_that_is_not_there_is_counted(
    tmp_path: Path,
) -> None:
    root = tmp_path / "idiap"
    save(root / "a/b/1.png", picture(1))
    save(root / "a/b/2.png", picture(2))
    (root / "image_list_real.txt").write_text("a/b/1.png 0\na/b/9.png 0\n")
    (root / "image_list_fake.txt").write_text("a/b/2.png 1\n")
    found = listed("fedgpad", root)
    assert [(item.species, item.subject, item.own_subject) for item in found.items] == [
        ("bonafide", "replay-attack/a/b", True),
        ("attack", "replay-attack/a/b", True),
    ]
    assert [one.path for one in found.skipped] == ["a/b/9.png"]


def test_a_depth_map_lies_at_the_full_path_or_at_its_first_folders(tmp_path: Path) -> None:
    root = tmp_path / "OULU"
    names = [f"Train_files/1_1_0{n}_1/7.png" for n in (1, 2)]
    for number, name in enumerate(names):
        save(root / name, picture(number))
    save(root / "Train_files/1_1_01_2/8.png", picture(9))
    (root / "image_list_real.txt").write_text("".join(f"{name} 1\n" for name in names))
    (root / "image_list_fake.txt").write_text("Train_files/1_1_01_2/8.png 0\n")
    save(root / "depth/Train_files/1_1_01_1/7_depth.png", np.full((24, 24, 3), 80, np.uint8))
    save(root / "depth/Train_files/7_depth.png", np.full((24, 24, 3), 160, np.uint8))
    import_items(
        SCANNERS["fedgpad"],
        root,
        tmp_path / "set",
        ImportOptions(size=24, crop="none", depth=str(root / "depth"), frames="4"),
        name="O",
    )
    found = PreparedSet.open(tmp_path / "set")
    assert {*found.rows.further} == {"official", "phone", "session", "file"}
    assert found.depth is not None
    values = {item: int(found.depth[row].max()) for row, item in enumerate(found.rows.item.tolist())}
    assert values == {names[0]: 80, names[1]: 160, "Train_files/1_1_01_2/8.png": 0}
