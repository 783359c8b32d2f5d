"""Tables and contact sheets of prepared sets."""

from pathlib import Path

import numpy as np
from tests.data.small_sets import make_set, write_set
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.show import contact_sheet, describe


def test_the_table_counts_images_subjects_and_videos(tmp_path: Path) -> None:
    cells = [line.split() for line in describe(make_set(tmp_path / "T"))]
    assert cells == [
        ["split", "species", "images", "subjects", "videos"],
        ["train", "bonafide", "6", "3", "3"],
        ["train", "print", "6", "3", "3"],
        ["heldout", "bonafide", "4", "2", "2"],
        ["heldout", "print", "4", "2", "2"],
        ["all", "20", "5", "10"],
    ]


def coloured_set(path: Path) -> PreparedSet:
    """Make a set in which each subject and species has one image of a colour of its own; subject c has no mask."""
    kinds = [(who, what) for who in "abc" for what in ("bonafide", "mask") if (who, what) != ("c", "mask")]
    images = np.stack([np.full((16, 16, 3), (255, 40 * n, 40 * n), np.uint8) for n in range(len(kinds))])
    return write_set(path, images, species=[what for _, what in kinds], subject=[who for who, _ in kinds])


def green_values(sheet: np.ndarray) -> list[int]:
    """Return the green values of the pure cells (red 255, green = blue) of a sheet, other than its white."""
    red = (sheet[..., 0] == 255) & (sheet[..., 1] < 255)
    return sorted(set(sheet[..., 1][red].tolist()))


def test_every_subject_and_species_is_on_the_sheet(tmp_path: Path) -> None:
    sheet = np.array(contact_sheet(coloured_set(tmp_path / "C"), columns=3, per_species=1))
    assert green_values(sheet) == [0, 40, 80, 120, 160]
    assert sum((sheet[..., 1] == value).sum() >= 16 * 16 for value in (0, 40, 80, 120, 160)) == 5


def test_subjects_with_more_species_come_first(tmp_path: Path) -> None:
    sheet = np.array(contact_sheet(coloured_set(tmp_path / "C"), columns=2, per_species=1))
    assert green_values(sheet) == [0, 40, 80, 120]


def test_the_same_seed_gives_the_same_sheet(tmp_path: Path) -> None:
    prepared = make_set(tmp_path / "T", train=80)
    sheets = [np.array(contact_sheet(prepared, columns=3, seed=seed)) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(sheets[0], sheets[1])
    assert not np.array_equal(sheets[0], sheets[2])


def test_sheet_of_an_empty_split_is_refused(tmp_path: Path) -> None:
    prepared = make_set(tmp_path / "T")
    with refused("T", "'test'"):
        contact_sheet(prepared, split="test")


def test_sheet_has_a_heading(tmp_path: Path) -> None:
    """Two lines and the subjects' names, 20 pixels each, in letters that take 13 from top to descender."""
    sheet = np.array(contact_sheet(make_set(tmp_path / "T", train=80), columns=8))
    lines = [(sheet[top : top + 20] < 128).all(axis=-1).any(axis=1) for top in (0, 20, 40)]
    assert all(bool(line.any()) for line in lines)
    assert max(np.ptp(np.flatnonzero(line)) + 1 for line in lines) >= 13


def test_heading_names_the_split(tmp_path: Path) -> None:
    prepared = make_set(tmp_path / "T")
    tops = [np.array(contact_sheet(prepared, columns=1, split=split))[:20] for split in ("train", "heldout")]
    assert tops[0].shape != tops[1].shape or not np.array_equal(tops[0], tops[1])


def test_very_small_images_are_enlarged_by_a_whole_number(tmp_path: Path) -> None:
    sheet = np.array(contact_sheet(coloured_set(tmp_path / "C"), columns=3, per_species=1))
    assert ((sheet[..., 0] == 255) & (sheet[..., 1] == 40)).sum() == 48 * 48
