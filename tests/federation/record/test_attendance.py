"""Attendance is read from the rounds; a site without an accepted upload is not listed as a trainer."""

from __future__ import annotations

from typing import Any

import pytest

from fedvisage.federation.exchange import RoundRecord
from fedvisage.federation.record.attendance import absences, attendance_of, spans, training_summary


def row(number: int, replied: str, failed: str = "", asked: str = "ABC", *, lost: bool = False) -> dict[str, Any]:
    why = dict.fromkeys(failed, "offline") | ({"no quorum": "1 of 3"} if lost else {})
    counted = None if lost else sorted(set(replied) - set(failed))
    return {"round": number, "asked": list(asked), "replied": list(replied), "counted": counted, "failed": why}


def figures(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"sites": ["A", "B", "C"], "rounds": len(rows), "attendance": attendance_of(rows).as_json()}


def test_every_round_counts_whom_it_asked_and_heard() -> None:
    found = figures(row(1, "ABC"), row(2, "AB", "C"), row(3, "AB", "C"), row(4, "A", "BC", lost=True))
    assert found["attendance"] == {"rounds": {"A": 3, "B": 3, "C": 1}, "missed": {"C": [2, 3]}, "lost": [4]}
    assert training_summary(found) == (
        "trained by 3 sites (A, B, C) in 3 rounds; rounds 2, 3 without C; nothing was combined in round 4"
    )


def test_a_site_that_never_delivered_did_not_train() -> None:
    found = figures(row(1, "AB", "C"), row(2, "ABC", "C"))
    assert training_summary(found) == "trained by 2 sites (A, B) in 2 rounds; C never delivered"


def test_a_site_that_was_not_asked_missed_nothing() -> None:
    assert absences(figures(row(1, "AB", asked="AB"), row(2, "C", asked="C"))) == []


def test_a_round_in_which_all_failed_came_to_nothing_whatever_its_method_says() -> None:
    record = RoundRecord(1, asked=("A", "B"), failed={"A": "offline", "B": "offline"})
    assert record.counted is None
    assert attendance_of([row(1, "AB", lost=True)]).counted == {}


def test_a_site_that_only_failed_to_judge_the_rounds_model_trained() -> None:
    trained = row(1, "ABC") | {"failed": {"B": "offline"}}
    assert attendance_of([trained]).counted == {1: ("A", "B", "C")}


def test_rounds_from_before_they_counted_sites_are_read_by_who_did_not_fail() -> None:
    older = {key: value for key, value in row(1, "ABC", "C").items() if key != "counted"}
    assert attendance_of([older]).as_json()["missed"] == {"C": [1]}


def test_a_server_that_trains_alone_is_said_to() -> None:
    found = figures(row(1, ""))
    assert attendance_of([row(1, "")]).counted == {1: ()}
    assert "by no site" in training_summary(found)


def test_merged_sites_are_named() -> None:
    one = {"round": 1, "asked": ["all"], "replied": ["all"], "failed": {}}
    assert training_summary(figures(one)) == "trained by 3 sites (A, B, C) in 1 round"


def test_figures_from_before_rounds_were_counted_name_the_recipes_sites() -> None:
    assert training_summary({"sites": ["A"], "rounds": 2}) == "trained by 1 site (A) in 2 rounds"


@pytest.mark.parametrize(
    ("numbers", "said"), [([], ""), ([3], "3"), ([2, 3], "2, 3"), ([1, 2, 3, 5, 8, 9, 10], "1 to 3, 5, 8 to 10")]
)
def test_numbers_are_written_in_short(numbers: list[int], said: str) -> None:
    assert spans(numbers) == said
