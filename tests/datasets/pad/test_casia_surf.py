"""CASIA-SURF: numbered images of the older layout, whose classes only lists give, and streams by name."""

from pathlib import Path

import pytest
from tests.datasets.importers.files import picture, save
from tests.datasets.imports import list_items
from tests.refusals import refused

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
