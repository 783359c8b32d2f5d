"""Frames cropped by others: species, persons and columns by their names, and by the paths in FedGPAD's lists."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.importers.files import picture, save
from tests.datasets.imports import copy_to, import_attacks, list_items
from tests.refusals import refused

from fedvisage.datasets.options import ImportOptions

# Names of the published lists of FLIP and FedSIS, with species, subject and video.
FLIP = {
    "oulu-npu": ("train/real/2_2_12_1_frame0", "bonafide", "oulu-npu/12", "train/real/2_2_12_1"),
    "casia-fasd": ("test/fake/12_6_frame0", "cut", "casia-fasd/32", "test/fake/12_6"),
    "replay-attack": (
        "test/fake/hand_attack_mobile_client019_session01_mobile_photo_adverse_frame0",
        "photo",
        "replay-attack/019",
        "test/fake/hand_attack_mobile_client019_session01_mobile_photo_adverse",
    ),
    "msu-mfsd": (
        "train/fake/attack_client007_laptop_SD_printed_photo_scene01_frame0",
        "print",
        "msu-mfsd/007",
        "train/fake/attack_client007_laptop_SD_printed_photo_scene01",
    ),
    "cefa": ("test/fake/2_231_3_2_2_08", "print", "cefa/CA/231", "test/fake/2_231_3_2_2"),
    "wmca": ("test/fake/23.05.18_098_07_006_3_11_01", "print", "wmca/098", "test/fake/23.05.18_098_07_006_3_11"),
    "casia-surf": (
        "train/fake/Training_fake_part_CLKJ_BS1302_04_en_b.rssdk_color_51",
        "cut",
        "casia-surf/CLKJ_BS1302",
        "train/fake/Training_fake_part_CLKJ_BS1302_04_en_b.rssdk_color",
    ),
    "celeba-spoof": ("train/real/12_live_096546", "bonafide", "celeba-spoof/12", "train/real/12_live_096546"),
    "siw": ("train/attack/003-1-3-2-1_frame3", "replay", "siw/003", "train/attack/003-1-3-2-1"),
    "rose-youtu": ("test/live/G_NT_5s_g_E_13_1_frame0", "bonafide", "rose-youtu/13", "test/live/G_NT_5s_g_E_13_1"),
    "hkbu-mars-v2": ("test/fake/07_06_09_frame2", "mask_rigid", "hkbu-mars-v2/09", "test/fake/07_06_09"),
}


@pytest.mark.parametrize("kind", FLIP)
def test_frame_names_identify_the_dataset(kind: str, tmp_path: Path) -> None:
    name, species, subject, video = FLIP[kind]
    save(tmp_path / "frames" / f"{name}.png", picture(1))
    listing = list_items("frames", tmp_path / "frames")
    assert [(one.species, one.subject, one.video) for one in listing.items] == [(species, subject, video)]
    assert listing.notes == (f"frames of {kind}, by their names",)
    assert list_items("frames", tmp_path / "frames", ImportOptions(of=kind)) == listing


def test_the_real_videos_of_replay_attack_begin_with_their_folder(tmp_path: Path) -> None:
    name = "train/real/real_client025_session01_webcam_authenticate_controlled_2_frame0.png"
    save(tmp_path / name, picture(1))
    (item,) = list_items("frames", tmp_path).items
    assert (item.subject, item.split, item.extra["light"]) == ("replay-attack/025", "train", "controlled")


@pytest.mark.parametrize(("folder", "species"), [("real", "bonafide"), ("fake", "cut")])
def test_numbered_casia_surf_images_have_their_folders_class(folder: str, species: str, tmp_path: Path) -> None:
    save(tmp_path / "test" / folder / "Val_0002_002769-color.jpg", picture(1))
    (item,) = list_items("frames", tmp_path).items
    video = f"test/{folder}/Val_0002_002769-color"
    assert (item.species, item.subject, item.split, item.video) == (species, "casia-surf/Val/0002", "dev", video)


def test_folder_of_gd_fas_is_a_video(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"casia/train/attack/1_HR_4/{number:03d}.png", picture(number))
    (item,) = list_items("frames", tmp_path / "casia").items
    assert (item.kind, item.name, item.species) == ("frames", "train/attack/1_HR_4", "replay")


def test_frame_in_the_folder_of_the_other_class_is_refused(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = copy_to(copies["frames"], tmp_path / "copy")
    (root / "train/fake/1_HR_4_frame6.png").rename(root / "train/real/1_HR_4_frame6.png")
    with refused("copy", "train/real/1_HR_4_frame6.png", "attack"):
        list_items("frames", root)


def test_frames_of_two_datasets_in_one_folder_are_refused(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = copy_to(copies["frames"], tmp_path / "copy")
    save(root / "train/real/2_2_12_1_frame0.png", picture(1))
    with refused("copy", "casia-fasd", "train/real/2_2_12_1_frame0.png", "--of"):
        list_items("frames", root)


def test_ambiguous_names_require_the_dataset(tmp_path: Path) -> None:
    save(tmp_path / "train/real/2_2_12_1_frame0.png", picture(1))
    save(tmp_path / "train/real/1_1_frame0.png", picture(2))
    with refused(tmp_path, "casia-fasd", "oulu-npu", "--of"):
        list_items("frames", tmp_path)


def test_of_option_names_a_known_dataset(copies: Mapping[str, Path]) -> None:
    with refused("--of", "folder", "oulu-npu"):
        list_items("frames", copies["frames"], ImportOptions(of="folder"))
    with refused("--of", "OULU-NPU"):
        list_items("oulu-npu", copies["oulu-npu"], ImportOptions(of="oulu-npu"))
    with refused("frames", "oulu-npu"):
        list_items("frames", copies["frames"], ImportOptions(of="oulu-npu"))


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
