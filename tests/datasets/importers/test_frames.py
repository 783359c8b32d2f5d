"""Which frames are taken: a number, or places among those with a face."""

import pytest
from tests.refusals import refused

from fedvisage.datasets.frames import read_choice


def test_a_number_is_a_count() -> None:
    assert read_choice("10").count == read_choice(10).count == 10


@pytest.mark.parametrize(
    ("text", "frames", "wanted"),
    [("6,6+n/2", 100, [6, 56]), ("6,", 100, [6]), ("6,6+n/2", 9, [6, 8]), ("n/2,n/4", 10, [2, 5]), ("0,1", 1, [0])],
)
def test_places_are_counted_from_0_and_n_is_the_number_of_frames(text: str, frames: int, wanted: list[int]) -> None:
    assert read_choice(text).among(frames)[0] == wanted


def test_where_there_are_too_few_the_last_one_is_taken_and_that_is_said() -> None:
    choice = read_choice("6,6+n/2")
    assert choice.among(5) == ([4], True)
    assert choice.among(7) == ([6], True)
    assert choice.among(14) == ([6, 13], False)


@pytest.mark.parametrize("text", ["", "0", "-1", "six", "6+n", "6+n/0", "n*2", "1.5", "6;7", ","])
def test_what_is_neither_is_a_users_mistake(text: str) -> None:
    with refused("frames"):
        read_choice(text)
