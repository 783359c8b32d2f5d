"""Numbers in words, as they are printed."""

import pytest

from fedvisage.progress import counted


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (1, ("file",), "1 file"),
        (0, ("file",), "0 files"),
        (12_345, ("subject",), "12,345 subjects"),
        (1, ("person", "people"), "1 person"),
        (2, ("person", "people"), "2 people"),
    ],
)
def test_one_is_singular_and_all_other_numbers_are_plural(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said
