"""Lists of verification pairs, as LFW's pairs.txt is written."""

from pathlib import Path

import pytest
from tests.refusals import refused

from fedvisage.data.lists import listed_name, read_pairs

LINES = ("A_One\t1\t4", "B_Two\t2\t11", "A_One\t1\tB_Two\t3", "C\t1\tA_One\t2")


def write_list(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "pairs.txt"


def test_three_fields_are_one_person_and_four_are_two(tmp_path: Path) -> None:
    pairs = read_pairs(write_list(tmp_path, *LINES))
    assert pairs.first == ["A_One/A_One_0001", "B_Two/B_Two_0002", "A_One/A_One_0001", "C/C_0001"]
    assert pairs.second == ["A_One/A_One_0004", "B_Two/B_Two_0011", "B_Two/B_Two_0003", "A_One/A_One_0002"]
    assert pairs.same.tolist() == [True, True, False, False]
    assert pairs.fold.tolist() == [0, 0, 0, 0]


def test_first_line_may_state_the_folds(tmp_path: Path) -> None:
    assert read_pairs(write_list(tmp_path, "2\t2", *LINES, *LINES)).fold.tolist() == [0] * 4 + [1] * 4
    assert read_pairs(write_list(tmp_path, "2", *LINES)).fold.tolist() == [0] * 4
    with refused("pairs.txt", "4 pairs", "2 × 2 × 2"):
        read_pairs(write_list(tmp_path, "2\t2", *LINES))


def test_folds_begin_at_pairs_of_one_person(tmp_path: Path) -> None:
    assert read_pairs(write_list(tmp_path, *LINES, *LINES[:3])).fold.tolist() == [0] * 4 + [1] * 3


@pytest.mark.parametrize(
    ("lines", "place", "keyword"),
    [
        ((), "pairs.txt", "no pairs"),
        ((*LINES, "A\t1\tB\t2\t3"), "pairs.txt, line 5", "5 fields"),
        ((*LINES, "A\t1\tB"), "pairs.txt, line 5", "images"),
        (("many\tfolds", *LINES), "pairs.txt, line 1", "folds"),
    ],
)
def test_invalid_lists_of_pairs_are_refused_with_the_line(
    tmp_path: Path, lines: tuple[str, ...], place: str, keyword: str
) -> None:
    with refused(place, keyword):
        read_pairs(write_list(tmp_path, *lines))


def test_unreadable_list_is_refused(tmp_path: Path) -> None:
    with refused("none.txt", "exist"):
        read_pairs(tmp_path / "none.txt")
    (tmp_path / "model").write_bytes(b"\xff\xfe\x00\x01")
    with refused("model", "text"):
        read_pairs(tmp_path / "model")


def test_listed_name_is_folder_and_file() -> None:
    assert listed_name("A_One/A_One_0001.jpg") == listed_name("lfw/A_One/A_One_0001.png") == "A_One/A_One_0001"
    assert listed_name("m.0xnkj/m.0xnkj_0001.jpg") == "m.0xnkj/m.0xnkj_0001"
