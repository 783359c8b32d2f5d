"""Which pictures a person asks about: files, folders, lists and one through a pipe."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.refusals import refused

from fedvisage.base.errors import BadFile
from fedvisage.device.predict import InputPictures, exit_code, list_input_pictures, read_in_batches


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures in two folders, among other files."""
    place = tmp_path / "photos"
    (place / "more").mkdir(parents=True)
    for name, value in (("b.png", 2), ("a.png", 1), ("more/c.PNG", 3)):
        Image.fromarray(np.full((20, 20, 3), value, np.uint8)).save(place / name)
    for name in ("a.txt", "b.TXT", "clip.mov", "readme"):
        (place / name).write_text("no picture")
    return place


def names(asked: InputPictures) -> list[str]:
    return [Path(one.name).name for one in asked.pictures]


def test_files_and_folders_come_in_the_order_in_which_they_are_named(folder: Path) -> None:
    asked = list_input_pictures([folder / "b.png", folder])
    assert names(asked) == ["b.png", "a.png", "b.png", "c.PNG"]
    assert asked.pictures[1].read().mean() == 1


def test_files_of_folders_that_are_no_pictures_are_counted_by_their_endings(folder: Path) -> None:
    asked = list_input_pictures([folder])
    assert asked.passed_over == {".txt": 2, ".mov": 1, "": 1}
    (said,) = asked.notices
    for words in ("4 files", ".txt 2", ".mov 1", "no ending 1"):
        assert words in said
    assert list_input_pictures([folder / "a.png"]).notices == []


def test_a_dangling_link_of_a_folder_is_listed_and_rejected(folder: Path) -> None:
    (folder / "aa.png").symlink_to(folder / "none.png")
    (folder / "bb").symlink_to(folder / "none")
    asked = list_input_pictures([folder])
    assert names(asked) == ["a.png", "aa.png", "b.png", "c.PNG"]
    assert asked.passed_over[""] == 2
    with pytest.raises(BadFile, match="link to a missing file"):
        asked.pictures[1].read()


def test_an_ending_cannot_break_the_line_that_counts_it(folder: Path) -> None:
    (folder / "odd.x\ny").write_text("")
    assert "\n" not in list_input_pictures([folder]).notices[0]


def test_a_picture_is_read_from_a_pipe_only_when_its_turn_comes() -> None:
    content, reads = io.BytesIO(), []
    Image.fromarray(np.full((20, 20, 3), 9, np.uint8)).save(content, "png")

    def piped() -> bytes:
        reads.append(1)
        return content.getvalue()

    asked = list_input_pictures([Path("-")], None, piped)
    assert (names(asked), reads) == (["-"], [])
    assert asked.pictures[0].read().mean() == 9
    with refused("PATH", "once"):
        list_input_pictures([Path("-"), Path("-")], None, piped)


@pytest.mark.parametrize("between", [b"\n", b"\r\n", b"\0"])
def test_a_list_names_pictures_and_folders_one_a_line_or_between_nul_bytes(folder: Path, between: bytes) -> None:
    paths = [folder / "b.png", folder / "more", folder / "gone.png"]
    asked = list_input_pictures([], between.join(map(os.fsencode, paths)) + between)
    assert names(asked) == ["b.png", "c.PNG", "gone.png"]
    with pytest.raises(BadFile, match="No such file"):
        asked.pictures[-1].read()


def test_between_nul_bytes_a_name_may_hold_a_line_end_and_bytes_that_are_no_text(folder: Path) -> None:
    odd = os.fsencode(folder) + b"/two\nlines\xff.png"
    Path(os.fsdecode(odd)).write_bytes((folder / "a.png").read_bytes())
    asked = list_input_pictures([], odd + b"\0")
    assert asked.pictures[0].read().mean() == 1
    asked.pictures[0].name.encode()  # it can be written in a file of any program


def test_what_is_no_picture_is_named(folder: Path) -> None:
    (folder / "empty").mkdir()
    with refused("photos/nowhere", "folder"):
        list_input_pictures([folder / "nowhere"])
    with refused("photos/empty", ".png"):
        list_input_pictures([folder / "empty"])
    with refused("PATH", "--paths-from"):
        list_input_pictures([])


def test_what_was_seen_comes_in_order_with_the_reasons_and_the_steps(folder: Path) -> None:
    (folder / "ab.png").write_bytes(b"\x89PNG broken")
    steps: list[tuple[int, int]] = []
    portions = list(
        read_in_batches(
            list_input_pictures([folder]).pictures, lambda picture: picture.mean(), lambda *at: steps.append(at)
        )
    )
    seen = [one for portion in portions for _, one in portion]
    assert [seen[0], *seen[2:]] == [1, 2, 3]
    assert isinstance(seen[1], BadFile)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("decisions", "code"),
    [("llll", 0), ("lal", 1), ("lar", 1), ("lr", 3), ("r", 3), ("a", 1)],
)
def test_the_exit_code_says_the_worst_that_is_known(decisions: str, code: int) -> None:
    assert exit_code(decisions, good="l", bad="a") == code
