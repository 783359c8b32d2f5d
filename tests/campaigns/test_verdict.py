"""What a soak says at its end: each broken promise is named, a kept one is not, and the table counts what happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from campaigns.soak import table
from campaigns.soak.mischief import KINDS, Event
from campaigns.soak.runs import Run
from campaigns.soak.table import BEGIN, BOUNDS, DISK, END, Soak
from campaigns.soak.watch import Sample

KILL, CUT = "a site's processes are killed", "a site's network is cut"
SAMPLE = Sample(at=0.0, kind="server", machine="server", pid=1, age=300.0, rss_mb=300.0, files=30, threads=20)


@pytest.fixture
def soak() -> Soak:
    """Half an hour in which all went as promised, two runs of three rounds each."""
    runs = [
        Run(Path("run-001"), 0.0, 100.0, commands=1, rounds=[(20.0, 1), (50.0, 2), (90.0, 3)], jobs=2, again=1),
        Run(Path("run-002"), 110.0, 200.0, commands=2, rounds=[(130.0, 1), (135.0, 2), (199.0, 3)], jobs=4, again=2),
    ]
    events = [Event(30.0, KILL, "A", 0.0), Event(40.0, CUT, "B", 9.0), Event(136.0, KILL, "A", 0.0)]
    samples = [replace(SAMPLE, at=60.0 * n, age=60.0 * n) for n in range(3, 33)]
    found = Soak(30, 7, 5, 3, True, 0.0, 1800.0, events, samples, runs, equal=1, repeated=1)
    found.disk = [{"server": 100, "A": 10}, {"server": 100 + 2**21, "A": 10}]
    return found


def test_a_soak_without_a_fault_finds_none(soak: Soak) -> None:
    soak.codes = {"server": [-9, 1], "A": []}
    soak.runs[1].failures.append("1: the server cannot be reached")
    assert soak.found() == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"problems": ["run-001 and its repetition: model.safetensors"]}, "model.safetensors"),
        ({"codes": {"server": [-9], "B": [1, 2]}}, "B"),
        ({"lines": [(5.0, "Traceback (most recent call last):")]}, "traceback"),
        ({"left_over": 3}, "3"),
        ({"unburied": 4}, "4 dead"),
        ({"orphans": 5}, "5"),
        ({"disk": [{"A": 0}, {"A": int(4 * 1.5 * DISK * 2**20)}]}, f"A: {1.5 * DISK:.2f} MB"),
    ],
)
def test_each_broken_promise_is_named(soak: Soak, changes: dict[str, object], named: str) -> None:
    (problem,) = replace(soak, **changes).found()  # type: ignore[arg-type]
    assert named in problem


def test_a_command_that_ends_in_another_way_than_a_failed_run_is_a_fault(soak: Soak) -> None:
    soak.runs[0].failures += ["1: a failed run", "-6: it crashed"]
    (problem,) = soak.found()
    assert "run-001" in problem
    assert "-6" in problem


@pytest.mark.parametrize("value", list(BOUNDS))
def test_a_process_that_grows_is_a_fault(soak: Soak, value: str) -> None:
    each_minute = 2 * BOUNDS[value] / 60
    before = float(getattr(SAMPLE, value))
    soak.samples = [replace(one, **{value: before + each_minute * one.age / 60}) for one in soak.samples]
    (problem,) = soak.found()
    assert value in problem
    assert "server" in problem


def test_a_recovery_ends_with_a_round_that_began_after_the_mistake(soak: Soak) -> None:
    """Round 2 was over at 50 and had begun before both; round 3 began later and was over at 90."""
    assert soak.recoveries(KILL) == [60.0], "after the last mistake one round was over, which had begun before"
    assert soak.recoveries(CUT) == [50.0]


def test_the_table_counts_what_happened(soak: Soak) -> None:
    text = "\n".join(soak.lines_of_table())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert [KILL, "2", "60, 60"] in rows
    assert [CUT, "1", "50, 50"] in rows
    assert sum(row[0] in KINDS for row in rows) == 2, "what was not done has no line"
    server = next(row for row in rows if row[0] == "server")
    assert server[1:5] == ["300, 300", "30, 30", "20, 20", f"{30 * 5 / 3600:.1f}"]
    for said in ("30 minutes", "seed 7", "3 mistakes", "6 rounds", "2 of 2 runs", "0.50 MB"):
        assert said in text
    assert "submitted again 3 times" in text
    assert "typed again 1 times" in text


def test_the_page_has_the_new_table_in_the_old_one_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(table, "REPORT", page)
    table.write(["new"])
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_the_page_has_a_place_for_it() -> None:
    text = table.REPORT.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)
