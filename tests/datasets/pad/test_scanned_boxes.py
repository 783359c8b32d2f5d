"""Boxes that come with datasets: two forms that look alike, and rows that say nothing."""

from pathlib import Path

import numpy as np
import pytest

from fedvisage.datasets.pad.lists import Form, read_boxes, write_row


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
