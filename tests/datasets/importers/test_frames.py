"""The choice of frames: a number, or positions among the frames with a face."""

import pytest
from tests.refusals import refused

from fedvisage.datasets.frames import read_choice


def test_number_of_frames_is_read() -> None:
    assert read_choice("10").count == read_choice(10).count == 10


@pytest.mark.parametrize(
    ("text", "frames", "wanted"),
    [("6,6+n/2", 100, [6, 56]), ("6,", 100, [6]), ("6,6+n/2", 9, [6, 8]), ("n/2,n/4", 10, [2, 5]), ("0,1", 1, [0])],
)
def test_positions_start_at_0_and_n_is_the_number_of_frames(text: str, frames: int, wanted: list[int]) -> None:
    assert read_choice(text).among(frames)[0] == wanted


def test_last_frame_replaces_positions_beyond_the_end() -> None:
    choice = read_choice("6,6+n/2")
    assert choice.among(5) == ([4], True)
    assert choice.among(7) == ([6], True)
    assert choice.among(14) == ([6, 13], False)


@pytest.mark.parametrize("text", ["", "0", "-1", "six", "6+n", "6+n/0", "n*2", "1.5", "6;7", ","])
def test_invalid_choice_of_frames_is_refused(text: str) -> None:
    with refused("frames"):
        read_choice(text)
