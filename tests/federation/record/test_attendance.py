"""Attendance is read from the rounds; a site without an accepted upload is not listed as a trainer."""

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


def test_rounds_count_sampled_and_delivering_sites() -> None:
    actual = figures(row(1, "ABC"), row(2, "AB", "C"), row(3, "AB", "C"), row(4, "A", "BC", lost=True))
    assert actual["attendance"] == {"rounds": {"A": 3, "B": 3, "C": 1}, "missed": {"C": [2, 3]}, "lost": [4]}
    assert training_summary(actual) == (
        "trained by 3 sites (A, B, C) in 3 rounds; rounds 2, 3 without C; nothing was combined in round 4"
    )


def test_site_without_a_delivery_did_not_train() -> None:
    actual = figures(row(1, "AB", "C"), row(2, "ABC", "C"))
    assert training_summary(actual) == "trained by 2 sites (A, B) in 2 rounds; C never delivered"


def test_summary_of_many_absent_sites_names_a_dozen() -> None:
    names = [f"site{number:02d}" for number in range(50)]
    rounds = dict.fromkeys(names[:25], 1)
    missed = {name: [2] for name in names}
    many = {"sites": names, "rounds": 2, "attendance": {"rounds": rounds, "missed": missed, "lost": []}}
    trained, never, *gaps = training_summary(many).split("; ")
    assert trained.startswith("trained by 25 sites (site00, site01,")
    assert trained.endswith("site11 and 13 more) in 2 rounds")
    assert never == f"{', '.join(names[25:37])} and 13 more never delivered"
    assert gaps == [*(f"round 2 without {name}" for name in names[:12]), "some rounds without 13 more"]


def test_unsampled_site_missed_nothing() -> None:
    assert absences(figures(row(1, "AB", asked="AB"), row(2, "C", asked="C"))) == []


def test_round_without_a_delivery_has_no_result() -> None:
    record = RoundRecord(1, asked=("A", "B"), failed={"A": "offline", "B": "offline"})
    assert record.counted is None
    assert attendance_of([row(1, "AB", lost=True)]).counted == {}


def test_site_that_failed_only_in_evaluation_trained() -> None:
    trained = row(1, "ABC") | {"failed": {"B": "offline"}}
    assert attendance_of([trained]).counted == {1: ("A", "B", "C")}


def test_old_rounds_without_counts_use_their_list_of_failures() -> None:
    older = {key: value for key, value in row(1, "ABC", "C").items() if key != "counted"}
    assert attendance_of([older]).as_json()["missed"] == {"C": [1]}


def test_server_that_trains_alone_is_reported() -> None:
    actual = figures(row(1, ""))
    assert attendance_of([row(1, "")]).counted == {1: ()}
    assert "by no site" in training_summary(actual)


def test_merged_sites_are_named() -> None:
    one = {"round": 1, "asked": ["all"], "replied": ["all"], "failed": {}}
    assert training_summary(figures(one)) == "trained by 3 sites (A, B, C) in 1 round"


def test_old_figures_name_the_sites_of_the_recipe() -> None:
    assert training_summary({"sites": ["A"], "rounds": 2}) == "trained by 1 site (A) in 2 rounds"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([2, 3], "2, 3"), ([1, 2, 3, 5, 8, 9, 10], "1 to 3, 5, 8 to 10")]
)
def test_consecutive_rounds_are_shortened(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text
