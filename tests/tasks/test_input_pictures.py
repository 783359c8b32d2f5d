"""Input pictures: files, folders, lists and a pipe."""

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
    """Return a folder with three pictures and other files."""
    place = tmp_path / "photos"
    (place / "more").mkdir(parents=True)
    for name, value in (("b.png", 2), ("a.png", 1), ("more/c.PNG", 3)):
        Image.fromarray(np.full((20, 20, 3), value, np.uint8)).save(place / name)
    for name in ("a.txt", "b.TXT", "clip.mov", "readme"):
        (place / name).write_text("no picture")
    return place


def names(inputs: InputPictures) -> list[str]:
    return [Path(entry.name).name for entry in inputs.pictures]


def test_files_and_folders_are_listed_in_the_given_order(folder: Path) -> None:
    inputs = list_input_pictures([folder / "b.png", folder])
    assert names(inputs) == ["b.png", "a.png", "b.png", "c.PNG"]
    assert inputs.pictures[1].read().mean() == 1


def test_other_files_of_folders_are_counted_by_ending(folder: Path) -> None:
    inputs = list_input_pictures([folder])
    assert inputs.passed_over == {".txt": 2, ".mov": 1, "": 1}
    (text,) = inputs.notices
    for words in ("4 files", ".txt 2", ".mov 1", "by their ending", "none 1"):
        assert words in text
    assert list_input_pictures([folder / "a.png"]).notices == []


def test_hidden_files_of_a_folder_are_neither_listed_nor_counted(folder: Path) -> None:
    (folder / ".trash").mkdir()
    for name in ("._a.png", ".trash/d.png", "Thumbs.db", "more/desktop.ini"):
        (folder / name).write_text("of the system")
    inputs = list_input_pictures([folder])
    assert names(inputs) == ["a.png", "b.png", "c.PNG"]
    assert inputs.passed_over == {".txt": 2, ".mov": 1, "": 1}


def test_a_dangling_link_of_a_folder_is_listed_and_rejected(folder: Path) -> None:
    (folder / "aa.png").symlink_to(folder / "none.png")
    (folder / "bb").symlink_to(folder / "none")
    inputs = list_input_pictures([folder])
    assert names(inputs) == ["a.png", "aa.png", "b.png", "c.PNG"]
    assert inputs.passed_over[""] == 2
    with pytest.raises(BadFile, match="link to a missing file"):
        inputs.pictures[1].read()


def test_ending_cannot_break_its_line(folder: Path) -> None:
    (folder / "odd.x\ny").write_text("")
    assert "\n" not in list_input_pictures([folder]).notices[0]


def test_picture_from_a_pipe_is_read_in_turn() -> None:
    content, reads = io.BytesIO(), []
    Image.fromarray(np.full((20, 20, 3), 9, np.uint8)).save(content, "png")

    def piped() -> bytes:
        reads.append(1)
        return content.getvalue()

    inputs = list_input_pictures([Path("-")], None, piped)
    assert (names(inputs), reads) == (["-"], [])
    assert inputs.pictures[0].read().mean() == 9
    with refused("PATH", "once"):
        list_input_pictures([Path("-"), Path("-")], None, piped)


@pytest.mark.parametrize("between", [b"\n", b"\r\n", b"\0"])
def test_list_has_one_path_per_line_or_between_nul_bytes(folder: Path, between: bytes) -> None:
    paths = [folder / "b.png", folder / "more", folder / "gone.png"]
    inputs = list_input_pictures([], between.join(map(os.fsencode, paths)) + between)
    assert names(inputs) == ["b.png", "c.PNG", "gone.png"]
    with pytest.raises(BadFile, match="No such file"):
        inputs.pictures[-1].read()


def test_names_between_nul_bytes_may_hold_line_ends_and_other_bytes(folder: Path) -> None:
    odd = os.fsencode(folder) + b"/two\nlines\xff.png"
    Path(os.fsdecode(odd)).write_bytes((folder / "a.png").read_bytes())
    inputs = list_input_pictures([], odd + b"\0")
    assert inputs.pictures[0].read().mean() == 1
    inputs.pictures[0].name.encode()  # it can be written in a file of any program


def test_unreadable_picture_is_named(folder: Path) -> None:
    (folder / "empty").mkdir()
    with refused("photos/nowhere", "folder"):
        list_input_pictures([folder / "nowhere"])
    with refused("photos/empty", ".png"):
        list_input_pictures([folder / "empty"])
    with refused("PATH", "--paths-from"):
        list_input_pictures([])


def test_results_are_in_order_with_reasons_and_steps(folder: Path) -> None:
    (folder / "ab.png").write_bytes(b"\x89PNG broken")
    steps: list[tuple[int, int]] = []
    portions = list(
        read_in_batches(
            list_input_pictures([folder]).pictures, lambda picture: picture.mean(), lambda *at: steps.append(at)
        )
    )
    seen = [entry for portion in portions for _, entry in portion]
    assert [seen[0], *seen[2:]] == [1, 2, 3]
    assert isinstance(seen[1], BadFile)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("decisions", "code"),
    [("llll", 0), ("lal", 1), ("lar", 1), ("lr", 3), ("r", 3), ("a", 1)],
)
def test_exit_code_is_the_worst_result(decisions: str, code: int) -> None:
    assert exit_code(decisions, good="l", bad="a") == code
