"""The checks of tests/refusals.py fail for another place, a missing keyword and a part of a word."""

from pathlib import Path

import pytest
from tests.refusals import check_output, failed, refused

from fedvisage.base.errors import RunFailed, UserError


@pytest.mark.parametrize("place", ["rows.csv", "set/rows.csv", Path("/data/set/rows.csv")])
def test_file_matches_by_its_path_or_the_end_of_it(place: str | Path) -> None:
    with refused(place, "LINE 12", "7"):
        raise UserError("/data/set/rows.csv", "line 12 does not have 7 values")


def test_key_matches_by_its_name_or_by_the_section_and_a_dot() -> None:
    for place in ("recipe.training.rounds", "recipe.training."):
        with refused(place, "0"):
            raise UserError("recipe.training.rounds", "must be 1 or more, got 0")


@pytest.mark.parametrize(
    ("place", "keyword"),
    [("recipe.training", "10"), ("rounds", "10"), ("recipe.training.rounds", "1"), ("recipe.training.rounds", "most")],
)
def test_another_place_and_a_missing_keyword_fail(place: str, keyword: str) -> None:
    with pytest.raises(AssertionError, match="expected"), refused(place, keyword):
        raise UserError("recipe.training.rounds", "must be almost 10")


def test_error_without_a_place_matches_by_the_keywords() -> None:
    with failed(RunFailed, "3", "quorum"):
        raise RunFailed("no quorum: 2 of 3 sites")
    with pytest.raises(AssertionError, match="quorums"), failed(RunFailed, "quorums"):
        raise RunFailed("no quorum: 2 of 3 sites")


@pytest.mark.parametrize("output", ["fedvisage: --on: 'local' is unknown\n", "fedvisage: --of: 'pigeon'\n"])
def test_output_of_a_command_matches_by_place_and_keywords(output: str) -> None:
    check_output("fedvisage: --on: 'pigeon' is unknown\n", "--on", "'pigeon'")
    with pytest.raises(AssertionError, match="expected"):
        check_output(output, "--on", "'pigeon'")
