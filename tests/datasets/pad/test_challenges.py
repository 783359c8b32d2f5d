"""CASIA-SURF and CASIA-CeFA: names of whole copies, and images of the challenges, whose classes only lists give."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from tests.datasets.importers.files import picture, save
from tests.datasets.imports import copy_to, list_items
from tests.refusals import refused

from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Entry, match_name
from fedvisage.datasets.options import ImportOptions

REAL = "Training/real_part/CLKJ_AS0005/real.rssdk"
FAKE = "Training/fake_part/CLKJ_AS0005/04_en_b.rssdk"


def streams(folder: str, frame: str, order: str = "color depth ir") -> str:
    return " ".join(f"{folder}/{stream}/{frame}" for stream in order.split())


def numbers(number: str, order: str = "color depth ir") -> str:
    return " ".join(f"Val/0007/{number}-{stream}.jpg" for stream in order.split())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Make the layout before 2024: a training part with folders, and images with numbers."""
    root = tmp_path / "surf"
    for seed, folder in enumerate((REAL, FAKE)):
        for stream in ("color", "depth", "ir"):
            save(root / folder / stream / "0101.jpg", picture(seed))
    for number in ("007243", "007244", "007245"):
        for stream in ("color", "depth", "ir"):
            save(root / f"Val/0007/{number}-{stream}.jpg", picture(int(number)))
    (root / "train_list.txt").write_text(f"{streams(REAL, '0101.jpg')} 1\n{streams(FAKE, '0101.jpg')} 0\n")
    (root / "val_private_list.txt").write_text(f"{numbers('007243')} 1\n{numbers('007244')} 0\n")
    (root / "val_public_list.txt").write_text("".join(numbers(f"00724{n}") + "\n" for n in (3, 4, 5)))
    return root


def test_older_layout_has_classes_from_lists(old: Path) -> None:
    listing = list_items("casia-surf", old)
    assert [(item.name, item.species, item.subject, item.split) for item in listing.items] == [
        (f"{FAKE}/color", "cut", "casia-surf/CLKJ_AS0005", "train"),
        (f"{REAL}/color", "bonafide", "casia-surf/CLKJ_AS0005", "train"),
        ("Val/0007/007243-color.jpg", "bonafide", "casia-surf/Val/0007", "dev"),
        ("Val/0007/007244-color.jpg", "cut", "casia-surf/Val/0007", "dev"),
    ]
    assert listing.stray == {"depth and infrared images": 10, "images without a label in the private lists": 1}
    notes = "; ".join(listing.notes)
    assert "val_public_list.txt has no labels: 3 lines" in notes
    assert "1 is bona fide: 1 of them" in notes
    assert "the people in 2 images are unknown" in notes


def test_order_of_streams_in_a_list_does_not_matter(old: Path) -> None:
    plain = list_items("casia-surf", old)
    order = "ir color depth"
    (old / "train_list.txt").write_text(f"{streams(REAL, '0101.jpg', order)} 1\n{streams(FAKE, '0101.jpg', order)} 0\n")
    (old / "val_private_list.txt").write_text(f"{numbers('007243', order)} 1\n{numbers('007244', order)} 0\n")
    assert list_items("casia-surf", old) == plain


def test_training_lists_are_compared_and_may_be_inverted(old: Path) -> None:
    plain = [item.species for item in list_items("casia-surf", old).items]
    path = old / "train_list.txt"
    right = path.read_text()
    path.write_text(right.replace("jpg 0", "jpg 1"))
    with refused("surf/train_list.txt", "line 2", "Training/fake_part/CLKJ_AS0005/04_en_b.rssdk/color", "attack"):
        list_items("casia-surf", old)
    turn = str.maketrans("01", "10")
    for file, text in ((path, right), (old / "val_private_list.txt", (old / "val_private_list.txt").read_text())):
        file.write_text("\n".join(line[:-1] + line[-1].translate(turn) for line in text.splitlines()) + "\n")
    assert [item.species for item in list_items("casia-surf", old, ImportOptions(labels="live=0")).items] == plain


@pytest.mark.parametrize(
    ("text", "line", "keyword"),
    [
        (numbers("007243"), "line 1", "0 or 1"),
        ("other/1.jpg 1", "line 1", "other/1.jpg"),
        (f"{numbers('007243')} 1\n{numbers('007243')} 0", "line 2", "Val/0007/007243"),
    ],
)
def test_contradicting_private_lists_are_refused(text: str, line: str, keyword: str, old: Path) -> None:
    (old / "val_private_list.txt").write_text(text + "\n")
    with refused("val_private_list.txt", line, keyword):
        list_items("casia-surf", old)


def test_copy_with_public_lists_only_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "c/Testing/0000/000001-color.jpg", picture(1))
    (tmp_path / "c/test_public_list.txt").write_text("Testing/0000/000001-color.jpg\n")
    with refused("c", "test_public_list.txt", "1 line"):
        list_items("casia-surf", tmp_path / "c")


def read_path(path: str) -> Entry | str:
    match = match_name(SCANNERS["cefa"], path, ImportOptions())
    assert match, path
    return match[2]


def test_whole_copy_without_masks_has_the_published_counts() -> None:
    counts, subjects = Counter[tuple[str | None, str]](), set()
    for (number, race), person in product(enumerate(("AF", "CA", "EA"), 1), range(500)):
        for end in ("1_1_1", "3_1_2", "3_2_2", "3_1_4"):
            one = read_path(f"{race}/{race}-{person:03d}/{number}_{person:03d}_{end}/color/0001.jpg")
            assert isinstance(one, Entry)
            counts[one.split, one.species] += 1
            subjects.add((one.part, one.subject))
    assert len(subjects) == 1500
    parts = {"train": 600, "dev": 300, "test": 600}
    kinds = {"bonafide": 1, "print": 2, "replay": 1}
    assert counts == {(part, kind): share * n for (part, n), (kind, share) in product(parts.items(), kinds.items())}


def test_same_number_is_another_person_in_each_part() -> None:
    paths = (
        "AF-001/1_001_1_1_1",
        "CA-001/2_001_1_1_1",
        "EA-001/3_001_1_1_1",
        "3D-Mask/001/1_001_1_0_2_1_2",
        "Silicone-Mask/001/2_001_1_0_2_1_2",
    )
    people = [read_path(f"{path}/color/0001.jpg") for path in paths]
    assert len({(one.part, one.subject) for one in people if isinstance(one, Entry)}) == 5


def test_other_streams_are_left_out(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = copy_to(copies["cefa"], tmp_path / "copy")
    for stream in ("depth", "ir", "profile"):
        save(root / "Ethnicity/AF/AF-001/1_001_1_1_1" / stream / "0001.png", picture(7))
    listing = list_items("cefa", root)
    assert len(listing.items) == 8
    assert listing.stray == {"depth, infrared or re-cropped images": 3}


def make_challenge(root: Path) -> Path:
    """Make the layout of the challenge of 2020, with a training part and folders with numbers."""
    folders = ("train/AF-001/1_001_1_1_1", "train/AF-001/1_001_3_1_4", "dev/003000", "dev/003001", "dev/003002")
    for number, folder in enumerate(folders):
        save(root / "phase1" / folder / "profile/0001.png", picture(number))
        save(root / "phase1" / folder / "depth/0001.png", picture(100 + number))
    (root / "4@1_train.txt").write_text(
        "train/AF-001/1_001_1_1_1/profile/0001.jpg 1\ntrain/AF-001/1_001_3_1_4/profile/0001.jpg 0\n"
    )
    (root / "4@1_dev_ref.txt").write_text("dev/003000 1\ndev/003001 0\n")
    (root / "4@1_dev_res.txt").write_text("dev/003000\ndev/003001\ndev/003002\n")
    return root


def test_challenge_folders_have_classes_from_lists(tmp_path: Path) -> None:
    listing = list_items("cefa", make_challenge(tmp_path / "c"))
    assert [(item.name, item.species, item.subject, item.split, item.own_subject) for item in listing.items] == [
        ("AF-001/1_001_1_1_1/profile", "bonafide", "cefa/AF/001", "train", False),
        ("AF-001/1_001_3_1_4/profile", "replay", "cefa/AF/001", "train", False),
        ("dev/003000/profile", "bonafide", "cefa/dev/003000", "dev", True),
        ("dev/003001/profile", "attack", "cefa/dev/003001", "dev", True),
    ]
    assert listing.stray["frames of folders without a label in the lists 4@…"] == 1
    assert any("4@1_dev_res.txt has no labels: 3 folders left out" in note for note in listing.notes)
    assert any("1 is bona fide: 1 of them" in note for note in listing.notes)


def test_challenge_list_that_contradicts_names_is_refused(tmp_path: Path) -> None:
    root = make_challenge(tmp_path / "c")
    path = root / "4@1_train.txt"
    path.write_text(path.read_text().replace("0001.jpg 0", "0001.jpg 1"))
    with refused("c/4@1_train.txt", "line 2", "AF-001/1_001_3_1_4", "attack"):
        list_items("cefa", root)


@pytest.mark.parametrize(
    ("lines", "at", "keyword"),
    [
        ("dev/003000\ndev/003001\n", "line 1", "dev/003000"),
        ("dev/003000 1\ndev/003001\n", "line 2", "dev/003001"),
    ],
)
def test_reference_list_without_labels_is_refused(lines: str, at: str, keyword: str, tmp_path: Path) -> None:
    root = make_challenge(tmp_path / "c")
    (root / "4@1_dev_ref.txt").write_text(lines)
    with refused("c/4@1_dev_ref.txt", at, keyword, "label"):
        list_items("cefa", root)


def test_lists_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    root = make_challenge(tmp_path / "c")
    (root / "4@2_dev_ref.txt").write_text("dev/003000 0\n")
    with refused("c/4@2_dev_ref.txt", "dev/003000", "label"):
        list_items("cefa", root)


def test_copy_with_unlabelled_lists_only_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "c/phase2/test/000001/profile/0001.png", picture(1))
    (tmp_path / "c/4@1_test_res.txt").write_text("test/000001\n")
    with refused("c", "4@1_test_res.txt", "1 folder"):
        list_items("cefa", tmp_path / "c")
